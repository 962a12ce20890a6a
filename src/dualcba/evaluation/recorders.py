"""Recorders: what a run is watched for beside its scores, without leaving a trace in it.

A recorder looks at the learner before each step and at the end of the stream. It changes nothing
there: it takes no random number from the learner's generators, moves no running statistics and
writes no gradient, so the scores are the same with and without it. What it sees stays on the
device until `result` asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data import Dataset, Task
from dualcba.learner import Learner
from dualcba.normalization.statistics import evaluation_mode
from dualcba.prediction import NORMS
from dualcba.randomness import generator

Rows = NDArray[np.int64]

BATCH = 500
"""Test samples in one forward."""

MOST = 500
"""Test samples that a posterior is averaged over, at most."""

OFFSETS = (-5, -1, *range(21), 25, 30, 40, 50, 75, 100, 150, 200, 300)
"""Steps around a boundary: how many steps of the new task have been made, dense where it moves."""

AFTER = 5
"""How many steps of the new task "shortly after" a boundary means."""


class Recorder:
    """Watches one run; whoever calls it does so within the learner's `engine.scope()`.

    Parameters
    ----------
    learner, data, stream
        What learns, from what, in which tasks.
    steps
        How many steps each task of the stream takes.
    """

    def __init__(
        self, learner: Learner, data: Dataset, stream: Sequence[Task], steps: Sequence[int]
    ) -> None:
        self.learner = learner
        self.data = data
        self.stream = stream
        self.lengths = list(steps)

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Called before each step with the batch that it will learn, raw and on the device."""

    def result(self) -> Any:
        """What was recorded, as JSON takes it; called once, at the end of the stream."""
        raise NotImplementedError


class Predictions(Recorder):
    """Counts of answers at the end of the stream: rows are true classes, columns predicted ones.

    Over all test samples of the stream, under BN and under IBN, as `Learner.predict` answers.
    """

    def result(self) -> dict[str, list[list[int]]]:
        """`{"bn": C×C, "ibn": C×C}`."""
        return {norm: self._counts(norm).cpu().tolist() for norm in NORMS}

    def _counts(self, norm: str) -> Tensor:
        learner, C = self.learner, self.data.num_classes
        rows = torch.from_numpy(np.concatenate([task.test for task in self.stream]))
        with learner.evaluating(norm):
            counts = torch.zeros(C * C, dtype=torch.long, device=learner.device)
            for part in torch.split(rows, BATCH):
                x = learner.engine.receive(self.data.test_x[part])
                y = learner.engine.receive(self.data.test_y[part])
                cell = y * C + learner.scores(x).argmax(1)
                counts.index_add_(0, cell, torch.ones_like(cell))
            return counts.view(C, C)


@dataclass
class _Boundary:
    """One boundary: the samples looked at, and the mean posteriors seen so far."""

    task: int  # from 0: the one that begins
    start: int  # its first step
    groups: tuple[Rows, Rows, Rows]  # test rows of old tasks, of the new one, of one old class
    one: int  # that class
    offsets: list[int] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)  # (3, C) each, on the device
    x: list[Tensor] = field(default_factory=list)  # the samples themselves, while needed


class Transitions(Recorder):
    """Mean posteriors of the raw network around each boundary between tasks.

    The network is asked as at test time under BN: in evaluation mode, with the running statistics
    that training left behind, without adaptor, its softmax over all classes. Old classes are those
    of all tasks before the boundary, new ones those of the task that begins. Step 0 is the network
    as the new task finds it, before any of its samples; step s has seen s of its batches. Test
    samples are at most 500 of the old tasks and 500 of the new one, drawn once by the seed.

    The single class is the middle one of the task that has just ended: the fifth of ten, so at the
    last boundary of Split CIFAR-100 the paper's 85th (index 84).
    """

    def __init__(
        self, learner: Learner, data: Dataset, stream: Sequence[Task], steps: Sequence[int]
    ) -> None:
        super().__init__(learner, data, stream, steps)
        self.boundaries = [self._boundary(t) for t in range(1, len(stream))]
        self.due: dict[int, list[tuple[_Boundary, int]]] = {}
        for boundary in self.boundaries:
            before, length = self.lengths[boundary.task - 1], self.lengths[boundary.task]
            for offset in OFFSETS:
                if -before <= offset < length:
                    self.due.setdefault(boundary.start + offset, []).append((boundary, offset))

    def _boundary(self, t: int) -> _Boundary:
        rng = generator(self.learner.seed, "transitions", t)
        last = self.stream[t - 1]
        one = last.classes[(len(last.classes) - 1) // 2]
        of_one = last.test[self.data.test_y[last.test].numpy() == one]
        old = np.concatenate([task.test for task in self.stream[:t]])
        groups = (old, self.stream[t].test, of_one)
        some = tuple(rng.permutation(rows)[:MOST] for rows in groups)
        return _Boundary(t, sum(self.lengths[:t]), some, one)  # type: ignore[arg-type]

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Look where a boundary is near."""
        for boundary, offset in self.due.pop(self.learner.step, []):
            if not boundary.x:
                receive = self.learner.engine.receive
                boundary.x = [receive(self.data.test_x[rows]) for rows in boundary.groups]
            boundary.offsets.append(offset)
            boundary.means.append(torch.stack([self._posterior(part) for part in boundary.x]))
            if not any(boundary is b for points in self.due.values() for b, _ in points):
                boundary.x = []

    @torch.no_grad()
    def _posterior(self, x: Tensor) -> Tensor:
        """The mean posterior over samples, (C,)."""
        learner = self.learner
        with evaluation_mode(learner.network), learner.method.context.autocast():
            z, _ = learner.network(learner.transform(x))
        return z.softmax(1).mean(0)  # type: ignore[no-any-return]

    def result(self) -> list[dict[str, Any]]:
        """One entry per boundary, tasks counted from 1."""
        return [self._entry(boundary) for boundary in self.boundaries]

    def _entry(self, boundary: _Boundary) -> dict[str, Any]:
        means = torch.stack(boundary.means).cpu()  # (steps, 3, C)
        old = [c for task in self.stream[: boundary.task] for c in task.classes]
        new = list(self.stream[boundary.task].classes)
        after = max(s for s in boundary.offsets if s <= AFTER)
        single = dict(zip(boundary.offsets, means[:, 2].tolist(), strict=True))
        mass = {
            who: {
                "p_old": means[:, k, old].sum(1).tolist(),
                "p_new": means[:, k, new].sum(1).tolist(),
            }
            for k, who in enumerate(("old", "new"))
        }
        classes = {"class": boundary.one, "before": single[0], "after": single[after]}
        return {
            "task": boundary.task + 1,
            "step": boundary.offsets,
            **mass,
            "classes": {**classes, "steps": [0, after]},
        }
