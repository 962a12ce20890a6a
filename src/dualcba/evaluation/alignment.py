"""Measure Theorem 1: whether the gradients of buffer loss and training loss align.

The two sides of the theorem, for a learning rate α and an L_buf with η-Lipschitz gradient:

    ⟨G_buf, G_trn⟩ ≥ (α η / 2) ‖G_trn‖²        G_buf = ∇θ L_buf(f_θ)        G_trn = ∇θ L_trn(F_θ,φ)

The constant η of a network is unknown. Instead, η is estimated by the *secant* over the step
itself, η = ‖∇L_buf(θ') − ∇L_buf(θ)‖ / ‖θ' − θ‖ with θ' = θ − α G_trn. Every valid constant is at
least this large, so this is the weakest form of the bound: if it fails, the theorem's bound fails
too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.engine.packet import Array, pack, unpack
from dualcba.errors import expected
from dualcba.evaluation.recorders import Recorder
from dualcba.losses import Adapt, Batch, identity, total
from dualcba.methods import viewed
from dualcba.normalization.statistics import without_tracking
from dualcba.randomness import generator
from dualcba.training.draws import BatchDraws, MemoryDraw, draw_views

EVERY = 10
"""Smallest number of steps between measurements; rounded up to a multiple of `outer_every`."""

Parameters = Mapping[str, Tensor]

MEASURED = ("dot", "norm_trn", "bound", "lipschitz", "loss_after")


class Alignment(Recorder):
    """Both sides of Theorem 1 during a run, with and without the adaptor.

    It measures every tenth step of a task, from the second task on; these steps also update the
    adaptor. The step is simulated on the arriving batch, with memory draws and augmentations from
    the recorder's own generator, and with a copy of φ that takes an outer step on its own B_buf. At
    the same θ and on the same batches, it computes G_trn *with* the adaptor and *without* it (r =
    0), and G_buf on B_buf. Forward passes use batch statistics, as in training, but always full
    precision; penalties of normalisation layers are left out. The gradients are with respect to all
    parameters θ of the network, as in the theorem, and under `"head"` with respect to the last
    layer only, which the outer step unrolls. For a method without an adaptor, only *without* is
    measured.
    """

    def prepare(self) -> None:
        """Set up the measurements."""
        parts = self.learner.parts
        self.lr = parts.context.lr
        self.forward_pass = copy.copy(parts.forward_pass)
        self.forward_pass.context = replace(parts.context, autocast=nullcontext)  # full precision
        self.forward_pass.samplewise = False  # pass batches one by one
        outer_every = parts.outer_loop.every or 1  # None without an adaptor
        self.every = math.ceil(EVERY / outer_every) * outer_every
        self.points: list[tuple[int, int]] = []  # step, task from 0
        self.values: dict[str, list[Tensor]] = {}

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Measure every `every` steps of a task."""
        learner = self.learner
        if learner.task < 1 or not learner.memory.filled:
            return
        if (learner.step - learner.task_starts[-1]) % self.every:
            return
        self.points.append((learner.step, learner.task))
        with preserved(learner.method):
            measured = self.measure(x, y)
        for name, value in measured.items():
            self.values.setdefault(name, []).append(value.detach())

    def measure(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return all measurements of one step by name, as scalars on the device."""
        new, mem, outer_batch = self.batches(x, y)
        self.learner.method.observe(new, mem)
        theta = dict(self.learner.network.named_parameters())
        theta = {name: p for name, p in theta.items() if p.requires_grad}
        loss = self.buffer_loss({}, outer_batch)
        G_buf = gradient(loss, theta)
        out = {"alpha": self.lr.clone(), "loss": loss}
        adapts: dict[str, Adapt] = {"without": identity}
        if self.learner.adaptor is not None:
            adapts["with"] = self.adapted(new, mem, outer_batch)
        for which, adapt in adapts.items():
            G_trn = gradient(self.learner.method.loss(new, mem, adapt), theta)
            for scope, part in (("", theta), ("head.", self._head(theta))):
                out[f"{scope}norm_buf"] = _norm([G_buf[name] for name in part])
                sides = self._sides(part, G_buf, G_trn, outer_batch)
                out |= {f"{scope}{which}.{k}": v for k, v in zip(MEASURED, sides, strict=True)}
        return out

    def _head(self, theta: Parameters) -> dict[str, Tensor]:
        prefix = f"module.{self.learner.network.head_name}."
        return {name: p for name, p in theta.items() if name.startswith(prefix)}

    def _sides(
        self, theta: Parameters, G_buf: Parameters, G_trn: Parameters, outer_batch: Batch
    ) -> tuple[Tensor, ...]:
        """Return ⟨G_buf, G_trn⟩, ‖G_trn‖, the bound, η and L_buf after the step of `theta`."""
        lr = self.lr
        moved = {n: (p - lr * G_trn[n]).detach().requires_grad_() for n, p in theta.items()}
        after = self.buffer_loss(moved, outer_batch)
        G_after = gradient(after, moved)
        dot = torch.stack([(G_buf[n] * G_trn[n]).sum() for n in theta]).sum()
        norm = _norm([G_trn[n] for n in theta])
        lipschitz = _norm([G_after[n] - G_buf[n] for n in theta]) / (lr * norm)
        return dot, norm, lr * lipschitz / 2 * norm.square(), lipschitz, after

    def adapted(self, new: Batch, mem: Sequence[Batch], outer_batch: Batch) -> Adapt:
        """Return the logits adapted by a copy of φ after one outer step on these batches."""
        loop = copy.copy(self.learner.parts.outer_loop)
        loop.adaptor, loop.optimizer = copy.deepcopy((loop.adaptor, loop.optimizer))
        loop.observe(new, mem, self._filled())
        if loop.phi:
            loop.step(new, mem, outer_batch if loop.uses_outer_batch else None)
        return loop.adapt(new, mem)

    def _filled(self) -> Tensor:
        """Return the number of samples in the memory, on the device."""
        return self.engine.receive(torch.tensor([self.learner.memory.filled]))

    # ------------------------------------------------------------------ forwards

    def batches(self, x: Tensor, y: Tensor) -> tuple[Batch, list[Batch], Batch]:
        """Return the new batch, the memory draws and B_buf after a forward pass, as in a step."""
        packet, layout = pack(self._draw(len(x)))
        drawn: BatchDraws[Tensor] = unpack(self.engine.receive(torch.from_numpy(packet)), layout)
        assert drawn.outer_batch is not None
        with torch.enable_grad(), without_tracking(self.forward_pass.norm_layers):
            new, mem = self.forward_pass.inner_batches(x, y, drawn)
            return new, mem, self.forward_pass.outer_batch(x, y, drawn)

    def _draw(self, n: int) -> BatchDraws[Array]:
        """Make the random draws for n new samples, with a generator for this step."""
        learner, method = self.learner, self.learner.method
        rng = generator(learner.seed, "alignment", learner.step)
        context, size = self.forward_pass.context, learner.memory_batch

        def augment(count: int, draw: int | None = None) -> Array | None:
            transform = context.transform_of(draw)
            return transform.draw(rng, count) if transform.random else None

        rows = [learner.memory.draw(size, rng) for _ in range(method.draws)]
        new_augment = augment(n)
        declared = self.forward_pass.views
        seen = viewed(method, range(len(rows)))
        memory = tuple(
            MemoryDraw(
                r, augment(len(r), k), draw_views(declared if k in seen else {}, rng, len(r))
            )
            for k, r in enumerate(rows)
        )
        views = draw_views(declared, rng, n - method.labelled)
        fresh = learner.memory.draw(size, rng)
        filled = np.array([learner.memory.filled]) if learner.parts.sampler.pooled else None
        outer_batch = MemoryDraw(fresh, augment(len(fresh)))
        return BatchDraws(new_augment, memory, outer_batch, views, filled)

    def buffer_loss(self, theta: Parameters, outer_batch: Batch) -> Tensor:
        """Return L_buf of the raw network, with the parameters `theta` instead of its own."""
        z = outer_batch.z
        if theta:
            with torch.enable_grad(), without_tracking(self.forward_pass.norm_layers):
                z, _ = self.forward_pass.outputs(outer_batch.x, outer_batch.y, theta)
        return total(self.learner.method.outer_terms(outer_batch.with_logits(z)), identity)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the points so far and their measurements."""
        values = {name: torch.stack(found) for name, found in self.values.items()}
        return {"tensors": values, "meta": {"points": [list(point) for point in self.points]}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the measurements of another recorder."""
        points = [(int(step), int(task)) for step, task in state["meta"]["points"]]
        wrong = [v.shape for v in state["tensors"].values() if v.shape != (len(points),)]
        if wrong or bool(points) != bool(state["tensors"]):
            raise ValueError(expected("points of the state", len(points), "a value for each"))
        self.points = points
        received = {name: self.engine.receive(v) for name, v in state["tensors"].items()}
        self.values = {name: list(v.unbind()) for name, v in received.items()}

    # ------------------------------------------------------------------ the result

    def result(self) -> dict[str, Any]:
        """Return lists over measured steps, for all of θ and, under `"head"`, the last layer."""
        values = {k: _numbers(torch.stack(v).cpu()) for k, v in self.values.items()}
        missing = [None] * len(self.points)

        def sides(scope: str) -> dict[str, Any]:
            out = {"loss": values.get("loss", missing)}
            out["norm_buf"] = values.get(f"{scope}norm_buf", missing)
            for which, suffix in (("with", ""), ("without", "_without")):
                out[which] = values.get(f"{scope}{which}.dot", missing)
                for name in MEASURED[1:]:
                    out[name + suffix] = values.get(f"{scope}{which}.{name}", missing)
            return out

        return {
            "every": self.every,
            "step": [step for step, _ in self.points],
            "task": [task + 1 for _, task in self.points],
            "alpha": values.get("alpha", missing),
            **sides(""),
            "head": sides("head."),
        }


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers after the block, since some methods update them in their loss."""
    live = list(module.buffers())
    kept = [buffer.clone() for buffer in live]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(live, kept, strict=True):
                buffer.copy_(value)


def gradient(loss: Tensor, theta: Parameters) -> dict[str, Tensor]:
    """Return ∇θ of a loss by name; keeps the graph and leaves `.grad` unchanged."""
    inputs = list(theta.values())
    grads = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    return dict(zip(theta, grads, strict=True))


def judge(recording: Mapping[str, Any], which: str = "with") -> dict[str, float]:
    """Summarise an alignment recording, or its `"head"`, as fractions of the measured steps.

    `aligned`: ⟨G_buf, G_trn⟩ > 0. `bound`: the theorem's inequality holds. `falls`: L_buf is no
    higher after the step than before, which the proof assumes. `cosine`: the mean over steps.

    >>> one = {"with": [2.0, -1.0], "bound": [1.0, 1.0], "norm_buf": [2.0, 1.0],
    ...        "norm_trn": [2.0, 1.0], "loss": [1.0, 1.0], "loss_after": [0.9, 1.1]}
    >>> judge(one)
    {'aligned': 0.5, 'bound': 0.5, 'falls': 0.5, 'cosine': -0.25}
    """
    suffix = "" if which == "with" else "_without"
    names = (
        which,
        "norm_buf",
        "loss",
        *(f"{m}{suffix}" for m in ("norm_trn", "bound", "loss_after")),
    )
    table = np.array([recording[name] for name in names], dtype=float)
    dot, norm_buf, loss, norm_trn, bound, after = table
    if not table.size or np.isnan(dot).all():
        raise ValueError(f"the alignment {which} the adaptor was not measured in this run")
    return {
        "aligned": float((dot > 0).mean()),
        "bound": float((dot >= bound).mean()),
        "falls": float((after <= loss).mean()),
        "cosine": float((dot / (norm_buf * norm_trn)).mean()),
    }


def _norm(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()


def _numbers(values: Tensor) -> list[float | None]:
    """Return the values, with None instead of NaN and infinities."""
    return [v if math.isfinite(v) else None for v in values.double().tolist()]
