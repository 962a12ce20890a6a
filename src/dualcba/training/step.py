"""One iteration of Algorithm 1: φ moves if it is due, then θ; then the memory takes its share.

Everything random comes in as a packet and nothing waits for the device, so the same code runs
eagerly and as a captured graph. φ moves first, on the logits that θ then learns from: by the
virtual step of `bilevel` both come from one forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLevel
from dualcba.engine import Engine
from dualcba.losses import Adapt, Batch
from dualcba.methods import Context, Method
from dualcba.normalization.layers import collect_penalties
from dualcba.randomness import Layout, unpack
from dualcba.training.forward import Forwards
from dualcba.training.loss_monitor import RecentLosses
from dualcba.training.precision import Precision


@dataclass(eq=False)
class Iteration:
    """The step of a learner, in place on the device."""

    context: Context
    method: Method
    forwards: Forwards
    outer: OuterLevel
    optimizer: torch.optim.Optimizer  # of θ
    losses: RecentLosses
    precision: Precision
    engine: Engine

    def run(self, x: Tensor, y: Tensor, packet: Tensor, *, layout: Layout, outer: bool) -> None:
        """Raw samples, labels and the step's draws; `outer`: whether φ moves."""
        with self.precision.lowered():
            self._iterate(x, y, unpack(packet, layout), outer)

    def _iterate(self, x: Tensor, y: Tensor, draw: Mapping[str, Tensor], outer: bool) -> None:
        collect_penalties(self.forwards.aware)  # what a step that failed may have left behind
        new, mem, buf = self._batches(x, y, draw)
        if outer:
            self.outer.step(new, mem, buf)
        adapt = self.outer.adapt(new, mem)
        loss = self._inner_step(new, mem, adapt)
        with torch.no_grad():
            self.method.after_step(draw.get("noise"))
            self.context.sets.appear(y)
            self._remember(x, y, draw["slots"], new, adapt)
            self.losses.write(draw["at"], loss)

    def _batches(
        self, x: Tensor, y: Tensor, draw: Mapping[str, Tensor]
    ) -> tuple[Batch, list[Batch], Batch | None]:
        """The new batch and the memory draws, and a fresh draw where the outer step takes one."""
        if "outer" not in draw:
            new, *mem = self.forwards.inner(x, y, draw)
            return new, mem, None
        # it takes the network as it is, and nothing of the rest; but a lone sample takes running
        # statistics, which the others move, and who knows what an unknown module keeps
        beside = len(draw["outer"]) > 1 and self.forwards.samplewise
        with self.engine.branch() if beside else nullcontext():
            buf = self.forwards.outer(draw)
        new, *mem = self.forwards.inner(x, y, draw)
        if beside:
            self.engine.join_branch()
        return new, mem, buf

    def _inner_step(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Move θ by the loss at adapted logits; returns that loss."""
        loss = self.method.loss(new, mem, adapt)
        extra = collect_penalties(self.forwards.aware)
        loss = loss if extra is None else loss + extra
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def _remember(self, x: Tensor, y: Tensor, slots: Tensor, new: Batch, adapt: Adapt) -> None:
        """Write new samples to the memory, with the logits they had where it stores those."""
        columns = {}
        if self.context.memory.columns:
            columns = {"logits": adapt(new).detach(), "raw_logits": new.z.detach()}
        self.context.memory.write(slots, x, y, columns)
