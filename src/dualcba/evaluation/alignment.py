"""Theorem 1, measured: do the gradients of the buffer loss and of the training loss agree?

The theorem's sides, for a learning rate α and an L_buf with η-Lipschitz gradient:

    ⟨G_buf, G_trn⟩ ≥ (α η / 2) ‖G_trn‖²        G_buf = ∇θ L_buf(f_θ)        G_trn = ∇θ L_trn(F_θ,φ)

Nobody knows η of a network. What is used here is the *secant* over the very step that is taken,
η = ‖∇L_buf(θ') − ∇L_buf(θ)‖ / ‖θ' − θ‖ with θ' = θ − α G_trn: no valid constant is smaller, so the
bound is the weakest that the theorem can mean, and where even that fails, the theorem's does.
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
from torch.func import functional_call

from dualcba.data import Dataset, Task, Transform
from dualcba.engine.torch_private import suppress_capturable_warning
from dualcba.evaluation.recorders import Recorder
from dualcba.learner import Learner
from dualcba.losses import Adapt, Batch, identity, total
from dualcba.normalization.statistics import evaluation_mode, without_tracking
from dualcba.randomness import generator
from dualcba.training.forward import Forwards

EVERY = 10
"""Steps between measurements, at least; rounded up to a multiple of the adaptor's."""

Parameters = Mapping[str, Tensor]

MEASURED = ("dot", "norm_trn", "bound", "lipschitz", "loss_after")


class Alignment(Recorder):
    """Both sides of Theorem 1 along a run, with and without the adaptor.

    At every tenth step of a task, from the second task on (steps at which the adaptor learns), the
    step is rehearsed on copies: the batch that arrives, fresh memory draws and augmentations by
    a generator of the recorder's own, a copy of φ that takes its outer step on the draw B_buf.
    Then, at the same θ and on the same batches, G_trn is taken *with* the adaptor and *without*
    it (r = 0), G_buf on B_buf. Forwards are as in training, by batch statistics, in full precision
    whatever the run's; a penalty that normalisation layers add is left out. The scope is all
    parameters θ of the network, as the theorem says, and under `"head"` the last layer alone,
    which is all that the outer step unrolls. Without an adaptor only *without* is measured.
    """

    def __init__(
        self, learner: Learner, data: Dataset, stream: Sequence[Task], steps: Sequence[int]
    ) -> None:
        super().__init__(learner, data, stream, steps)
        context = replace(learner.method.context, autocast=nullcontext)  # in full precision
        concat = learner.forwards.concat
        self.forwards = Forwards(context, learner.method, learner.views, concat=concat)
        self.forwards.samplewise = False  # apart is one after the other: nothing here is in a hurry
        self.every = math.ceil(EVERY / (learner.outer_every or 1)) * (learner.outer_every or 1)
        self.points: list[tuple[int, int]] = []  # step, task from 0
        self.values: dict[str, list[Tensor]] = {}

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Measure where it is due."""
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
        """Everything that is recorded of one step, by name; scalars on the device."""
        new, mem, outer = self.batches(x, y)
        theta = dict(self.learner.network.named_parameters())
        theta = {name: p for name, p in theta.items() if p.requires_grad}
        loss = self.buffer_loss({}, outer)
        G_buf = gradient(loss, theta)
        out = {"alpha": self.learner.lr.clone(), "loss": loss}
        adapts: dict[str, Adapt] = {"without": identity}
        if self.learner.adaptor is not None:
            adapts["with"] = self.adapted(new, mem, outer)
        for which, adapt in adapts.items():
            G_trn = gradient(self.learner.method.loss(new, mem, adapt), theta)
            for scope, part in (("", theta), ("head.", self._head(theta))):
                out[f"{scope}norm_buf"] = _norm([G_buf[name] for name in part])
                sides = self._sides(part, G_buf, G_trn, outer)
                out |= {f"{scope}{which}.{k}": v for k, v in zip(MEASURED, sides, strict=True)}
        return out

    def _head(self, theta: Parameters) -> dict[str, Tensor]:
        prefix = f"module.{self.learner.network.head_name}."
        return {name: p for name, p in theta.items() if name.startswith(prefix)}

    def _sides(
        self, theta: Parameters, G_buf: Parameters, G_trn: Parameters, outer: Batch
    ) -> tuple[Tensor, ...]:
        """⟨G_buf, G_trn⟩, ‖G_trn‖, the bound, η and L_buf after the step of these parameters."""
        lr = self.learner.lr
        moved = {n: (p - lr * G_trn[n]).detach().requires_grad_() for n, p in theta.items()}
        after = self.buffer_loss(moved, outer)
        G_after = gradient(after, moved)
        dot = torch.stack([(G_buf[n] * G_trn[n]).sum() for n in theta]).sum()
        norm = _norm([G_trn[n] for n in theta])
        lipschitz = _norm([G_after[n] - G_buf[n] for n in theta]) / (lr * norm)
        return dot, norm, lr * lipschitz / 2 * norm.square(), lipschitz, after

    def adapted(self, new: Batch, mem: Sequence[Batch], outer: Batch) -> Adapt:
        """Logits as a copy of φ adapts them that has learnt from these batches, where φ learns."""
        level = copy.copy(self.learner.outer)
        level.adaptor, level.optimizer = copy.deepcopy((level.adaptor, level.optimizer))
        if level.phi:
            assert level.optimizer is not None
            suppress_capturable_warning(level.optimizer)
            level.step(new, mem, outer if level.takes_a_draw else None)
        return level.adapt(new, mem)

    # ------------------------------------------------------------------ forwards

    def batches(self, x: Tensor, y: Tensor) -> tuple[Batch, list[Batch], Batch]:
        """New batch, memory draws and B_buf through the network, as a step of the learner's own."""
        learner = self.learner
        rng = generator(learner.seed, "alignment", learner.step)
        names = [f"mem{i}" for i in range(learner.method.draws)]
        draw = {name: self._rows(rng) for name in names}
        for name, count in {"new": len(x), **{name: len(draw[name]) for name in names}}.items():
            draw |= self._augment(f"{name}.augment", learner.transform, count, rng)
        for name, view in learner.views.items():
            draw |= self._augment(f"view.{name}", view, len(x) - learner.method.labelled, rng)
        with torch.enable_grad(), without_tracking(learner.norms):
            new, *mem = self.forwards.inner(x, y, draw)
        rows = self._rows(rng)
        augment = self._augment("outer", learner.transform, len(rows), rng)
        raw, labels, columns = learner.memory.read(rows)
        seen = learner.transform(raw, augment.get("outer"))
        z, h = self._outputs(seen, labels)
        return new, mem, Batch(seen, labels, z, h, columns)

    def _rows(self, rng: np.random.Generator) -> Tensor:
        rows = self.learner.memory.draw(self.learner.batch_size, rng)
        return self.learner.engine.receive(torch.from_numpy(rows))

    def _augment(
        self, name: str, transform: Transform, count: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        if not transform.random:
            return {}
        params = transform.draw(rng, count)
        return {name: self.learner.engine.receive(torch.from_numpy(params))}

    def _outputs(self, x: Tensor, y: Tensor, theta: Parameters | None = None) -> Any:
        """Logits and features at θ, batch statistics used and running ones untouched."""
        learner = self.learner
        mode = evaluation_mode(learner.network) if len(x) == 1 else nullcontext()
        with (
            torch.enable_grad(),
            mode,
            without_tracking(learner.norms),
            learner.forwards.tell_tasks(y),
        ):
            return functional_call(learner.network, dict(theta or {}), (x,))

    def buffer_loss(self, theta: Parameters, outer: Batch) -> Tensor:
        """L_buf of the raw network with these parameters in the place of its own."""
        z = outer.z
        if theta:
            z, _ = self._outputs(outer.x, outer.y, theta)
        return total(self.learner.method.outer_terms(outer.with_logits(z)), identity)

    # ------------------------------------------------------------------ the result

    def result(self) -> dict[str, Any]:
        """Lists over the measured steps; all of θ, and under `"head"` the last layer alone."""
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
    """Put a module's buffers back afterwards: some methods count in them what their loss saw."""
    live = list(module.buffers())
    kept = [buffer.clone() for buffer in live]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(live, kept, strict=True):
                buffer.copy_(value)


def gradient(loss: Tensor, theta: Parameters) -> dict[str, Tensor]:
    """∇θ of a loss, by name; the graph is kept and no `.grad` is written."""
    inputs = list(theta.values())
    grads = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    return dict(zip(theta, grads, strict=True))


def judge(recording: Mapping[str, Any], which: str = "with") -> dict[str, float]:
    """What an alignment recording, or its `"head"`, says, as shares of the measured steps.

    `aligned`: ⟨G_buf, G_trn⟩ > 0. `bound`: the theorem's inequality. `falls`: L_buf is no higher
    after the step than before, which the proof takes for granted. `cosine`: the mean over steps.

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
    """What is not finite was not measured."""
    return [v if math.isfinite(v) else None for v in values.double().tolist()]
