"""One training step: update φ if it is due, then θ, then the memory.

All random numbers arrive in a packet and nothing waits for the device, so the same code runs
eagerly and as a captured graph. φ is updated first, from the logits that θ is then trained on: with
the virtual step of `dualcba.adaptors.hypergradient` both updates share one forward pass. The
paper's Algorithm 1 updates θ first; see `update_order` and docs/departures.md.

A step that fails or is refused is undone. Everything that can fail comes first. The weights, the
averages of the method and the memory are changed last, without interruption by signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.data.standardise import Standardise
from dualcba.engine import Engine
from dualcba.engine.packet import Layout, as_tensors, pack, unpack
from dualcba.engine.torch_private import foreach_add_
from dualcba.losses import Adapt, Batch
from dualcba.methods import Context, Method
from dualcba.normalization.layers import collect_penalties
from dualcba.normalization.statistics import without_tracking
from dualcba.training.backup import Backup
from dualcba.training.draws import BatchDraws, StepDraws, StepSampler
from dualcba.training.forward import ForwardPass
from dualcba.training.guard import StepGuard
from dualcba.training.interrupts import interrupts
from dualcba.training.loss_monitor import LossMonitor
from dualcba.training.precision import Precision


@dataclass(eq=False)
class TrainingStep:
    """The step of a learner; it updates all state in place on the device."""

    context: Context
    method: Method
    sampler: StepSampler
    forward_pass: ForwardPass
    outer_loop: OuterLoop
    optimizer: torch.optim.Optimizer  # of θ
    loss_monitor: LossMonitor
    backup: Backup
    guard: StepGuard
    precision: Precision
    engine: Engine
    standardise: Standardise | None = None
    """Standardises the inputs; None if they are not standardised."""

    stores_first: bool = False
    """Whether batches are only stored while the memory is empty."""

    def stay_on_device(self) -> None:
        """From now on, do not wait for the guard's decision on a step, as on a GPU."""
        self.guard.stay_on_device()
        self.loss_monitor.on_device = True

    def take(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None,
        step: int,
        *,
        update_adaptor: bool,
    ) -> None:
        """Take the step on raw samples and labels, `Method.repeats` times.

        `storable` is the mask of samples that may enter the memory, by default all. The last
        repetition stores them; the first one updates φ. If anything fails, all changes are undone.
        """
        self.forward_pass.restore_modes()
        rng = {name: self.sampler.rng[name].bit_generator.state for name in self.sampler.used}
        seen, stale = self.context.memory.seen, self.context.memory.stale
        written = None if stale is None else stale.clone()
        self.backup.discard()
        try:
            if self.stores_first and not self.context.memory.filled:
                self._store(x, y, np.full(len(x), True) if storable is None else storable, step)
                return
            for k in range(self.method.repeats):
                last = k == self.method.repeats - 1
                stored = None if last else np.zeros(len(x), bool)
                stored = stored if storable is None else storable & last
                self._take(x, y, stored, step, update_adaptor and k == 0, first=k == 0)
        except BaseException:
            interrupts.defer()
            with self.engine.scope():
                self.backup.restore()
                self.context.memory.seen = seen
                if stale is not None and written is not None:
                    stale.copy_(written)
                for name, state in rng.items():
                    self.sampler.rng[name].bit_generator.state = state
            raise
        self.backup.discard()

    def _take(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None,
        step: int,
        update_adaptor: bool,
        *,
        first: bool,
    ) -> None:
        """Draw the random numbers on the host, then run the step on the engine."""
        outer_batch = update_adaptor and self.outer_loop.uses_outer_batch
        drawn = self.sampler.draw(step, len(x), storable, outer_batch=outer_batch)
        if self.guard.waits:  # on a CPU nothing is transferred, and packing would only cost time
            if first:
                self.backup.save_weights()
            on_host = partial(self.run, drawn=as_tensors(drawn), update_adaptor=update_adaptor)
            self.engine.run("step", on_host, x, y)
            return
        packet, layout = pack(drawn)
        trained = len(self.outer_loop.phi) if update_adaptor else 0
        run = partial(self.run_packet, layout=layout, update_adaptor=update_adaptor)
        key = ("step", layout, trained)
        if first and not self.engine.replays(key):
            with self.engine.scope():
                self.backup.save_weights()
        interrupts.defer()  # the launch is short, and queued work cannot be cancelled
        self.engine.run(key, run, x, y, packet)

    def run_packet(
        self, x: Tensor, y: Tensor, packet: Tensor, *, layout: Layout, update_adaptor: bool
    ) -> None:
        """Run the step on raw samples and labels, with the draws in a packet."""
        self.run(x, y, drawn=unpack(packet, layout), update_adaptor=update_adaptor)

    def run(self, x: Tensor, y: Tensor, *, drawn: StepDraws[Tensor], update_adaptor: bool) -> None:
        """Run the step on raw samples and labels, with drawn random numbers."""
        self.backup.save(with_adaptor=update_adaptor)
        with self.precision.cast_weights():
            self._run(x, y, drawn, update_adaptor)

    def _store(self, x: Tensor, y: Tensor, storable: NDArray[np.bool_], step: int) -> None:
        """Put the samples into the memory, without training on them."""
        packet, layout = pack(self.sampler.draw(step, len(x), storable))
        run = partial(self.store, layout=layout)
        if x.is_cuda:  # as in `_take`
            interrupts.defer()
        self.engine.run(("store", layout), run, x, y, packet)

    @torch.no_grad()
    def store(self, x: Tensor, y: Tensor, packet: Tensor, *, layout: Layout) -> None:
        """Store raw samples and labels, with their logits if the memory stores logits."""
        drawn: StepDraws[Tensor] = unpack(packet, layout)
        if self.standardise is not None:
            self.backup.save(with_adaptor=False)
        x, columns = self._inputs(x), {}
        if self.context.memory.columns:
            layers = self.forward_pass.norm_layers
            with self.precision.cast_weights(), without_tracking(layers):
                new, mem = self.forward_pass.inner_batches(x, y, drawn.batches)
                columns = self._columns(new, self.outer_loop.adapt(new, mem))
            collect_penalties(self.forward_pass.task_aware)
        interrupts.defer()
        self.context.good.fill_(True)
        self._remember(drawn, x, y, columns)

    def _inputs(self, x: Tensor) -> Tensor:
        """Let the guard check the raw samples, and add them to the statistics."""
        x = self.guard.inputs(x)
        if self.standardise is not None:
            self.standardise.update(x)
        return x

    def _remember(
        self, drawn: StepDraws[Tensor], x: Tensor, y: Tensor, columns: dict[str, Tensor]
    ) -> None:
        """Mark the classes of the samples as seen, and store the samples."""
        self.context.sets.appear(y, all_labelled=not self.method.unlabelled)
        self.context.memory.write(drawn.slots, x, y, columns)
        self.guard.accept()

    def _run(self, x: Tensor, y: Tensor, drawn: StepDraws[Tensor], update_adaptor: bool) -> None:
        collect_penalties(self.forward_pass.task_aware)  # discard penalties of a failed step
        x = self._inputs(x)
        new, mem, outer_batch = self._batches(x, y, drawn.batches)
        self.method.observe(new, mem)
        self.outer_loop.observe(new, mem, drawn.batches.filled)
        if update_adaptor:
            adapt = self.outer_loop.step_and_adapt(new, mem, outer_batch)
        else:
            adapt = self.outer_loop.adapt(new, mem)
        loss = self._backward(new, mem, adapt)
        with torch.no_grad():
            columns = self._columns(new, adapt)
            self.guard.judge(loss, self.outer_loop.phi if update_adaptor else ())
            interrupts.defer()
            with self.engine.branch():  # in parallel, as the update of all weights takes longest
                self.optimizer.step()
            self.guard.undo_if_refused()
            extra = drawn.batches.extra
            if type(self.method).after_step is not Method.after_step or extra is not None:
                self.engine.join_branch()
            if extra is not None:
                weights, change = self.method.extra_step(self.forward_pass.extra_batch(extra))
                foreach_add_(weights, self.guard.judge_extra(change), alpha=-1)
            self.method.after_step(drawn.noise)
            self._store_results(x, y, drawn, columns, loss.detach())
            self.engine.join_branch()

    def _store_results(
        self,
        x: Tensor,
        y: Tensor,
        drawn: StepDraws[Tensor],
        columns: Mapping[str, Tensor],
        loss: Tensor,
    ) -> None:
        """Store the batch in the memory, and the loss in the monitor."""
        columns = {name: self.guard.only_if_good(z, 0.0) for name, z in columns.items()}
        self._remember(drawn, x, y, columns)
        self.loss_monitor.write(drawn.loss_slot, self.guard.only_if_good(loss, torch.nan))

    def _batches(
        self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]
    ) -> tuple[Batch, list[Batch], Batch | None]:
        """Return the new batch, the memory draws and, if the outer step uses one, B_buf."""
        if drawn.outer_batch is None:
            return *self.forward_pass.inner_batches(x, y, drawn), None
        # B_buf is independent of the other batches and may run in parallel, with two exceptions:
        # a single sample uses running statistics, which the other batches update, and an unknown
        # module may have its own state
        parallel = drawn.outer_batch.size > 1 and self.forward_pass.samplewise
        with self.engine.branch() if parallel else nullcontext(), torch.no_grad():
            outer_batch = self.forward_pass.outer_batch(x, y, drawn)
        new, mem = self.forward_pass.inner_batches(x, y, drawn)
        if parallel:
            self.engine.join_branch()
        return new, mem, outer_batch

    def _backward(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Compute the loss at adapted logits and its gradients; return the loss."""
        loss = self.method.loss(new, mem, adapt)
        penalty = collect_penalties(self.forward_pass.task_aware)
        loss = loss if penalty is None else loss + penalty
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.engine.ranks is not None:
            grads = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
            self.engine.ranks.average_([g for g in grads if g is not None])
        return loss

    def _columns(self, new: Batch, adapt: Adapt) -> dict[str, Tensor]:
        """Return the logits of the new samples, if the memory stores them."""
        if not self.context.memory.columns:
            return {}
        return {"logits": adapt(new).detach(), "raw_logits": new.z.detach()}
