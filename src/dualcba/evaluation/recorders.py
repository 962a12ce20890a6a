"""Recorders: further measurements during a run, which do not affect it.

A recorder is called before each step and at the end of the stream. It must not change the learner,
so that scores are the same with and without it: it draws no random numbers from the learner's
generators, updates no running statistics and writes no gradients. Its measurements stay on the
device until `result` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.checkpoint import check_same_layout
from dualcba.data import Dataset, Task
from dualcba.errors import expected
from dualcba.evaluation.scores import Scores
from dualcba.learner import Learner
from dualcba.normalization.statistics import evaluation_mode
from dualcba.prediction import STATISTICS
from dualcba.randomness import generator

Rows = NDArray[np.int64]

BATCH = 500
"""Test samples per forward pass."""

MOST = 500
"""Largest number of test samples to average a posterior over."""

OFFSETS = (-5, -1, *range(21), 25, 30, 40, 50, 75, 100, 150, 200, 300)
"""Steps relative to the start of a task at which posteriors are measured."""

AFTER = 5
"""The step of the new task at which the posterior "after" a boundary is measured."""


@dataclass
class Clock:
    """The number of batches that have arrived, if it differs from the number of steps."""

    now: int = 0


@dataclass(frozen=True)
class Scoring:
    """The evaluation of a run between task ends, and its number of epochs."""

    statistics: Sequence[str] = STATISTICS
    every: int = 5
    """The option `eval_every`."""
    epochs: int = 1
    clock: Clock | None = None
    """Set in real-time evaluation, where the learner does not train on every batch."""


class Recorder:
    """Records one run; its methods are called inside the `scope()` of the learner's engine.

    Parameters
    ----------
    learner, data, stream
        The learner, its dataset and the tasks of its stream.
    steps
        The number of steps of each task.
    scoring
        The evaluation of the run.
    """

    first_only: bool = False
    """Whether `before_step` gets the label −1 for samples that arrived before: in an earlier pass,
    in a repeated labelled batch, or as an exemplar."""

    def __init__(
        self,
        learner: Learner,
        data: Dataset,
        stream: Sequence[Task],
        steps: Sequence[int],
        scoring: Scoring | None = None,
    ) -> None:
        self.learner = learner
        self.engine = learner.parts.engine
        self.data = data
        self.stream = stream
        self.lengths = list(steps)
        self.scoring = scoring or Scoring()
        self.prepare()

    def prepare(self) -> None:
        """Called once, before the run begins."""

    @property
    def position(self) -> int:
        """The number of batches that arrived before the current one."""
        clock = self.scoring.clock
        return self.learner.step if clock is None else clock.now

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Called before each step with its new batch, raw and on the device."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded so far: `tensors` by name, on the device, and `meta` as JSON.

        A recorder that measures only at the end of the stream need not override it.
        """
        return {"tensors": {}, "meta": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a recorder of the same run; raise if it does not fit."""
        check_same_layout({}, state["tensors"])

    def result(self) -> Any:
        """Return the recording as JSON types; called once, at the end of the stream."""
        raise NotImplementedError

    def scores(self) -> dict[str, Scores]:
        """Return scores to be added to those of the run, by statistics; called after `result`."""
        return {}


class Predictions(Recorder):
    """The confusion matrix at the end of the stream: rows are true, columns predicted classes.

    It counts predictions of all test samples of the stream, under BN and IBN statistics.
    """

    def result(self) -> dict[str, list[list[int]]]:
        """Return `{"bn": C×C, "ibn": C×C}`."""
        return {s: self._counts(s).cpu().tolist() for s in STATISTICS}

    def _counts(self, statistics: str) -> Tensor:
        learner, C = self.learner, self.data.num_classes
        rows = torch.from_numpy(np.concatenate([task.test for task in self.stream]))
        with learner.evaluating(statistics):
            counts = torch.zeros(C * C, dtype=torch.long, device=learner.device)
            for part in torch.split(rows, BATCH):
                x = self.engine.receive(self.data.test_x[part])
                y = self.engine.receive(self.data.test_y[part])
                cell = y * C + learner.scores(x).argmax(1)
                counts.index_add_(0, cell, torch.ones_like(cell))
            return counts.view(C, C)


@dataclass
class _Boundary:
    """One boundary: its test samples, and the mean posteriors measured so far."""

    task: int  # the task that begins, from 0
    start: int  # its first step
    groups: tuple[Rows, Rows, Rows]  # test rows of old tasks, of the new one, of one old class
    one: int  # that class
    offsets: list[int] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)  # (3, C) each, on the device
    x: list[Tensor] = field(default_factory=list)  # the samples, while they are needed


class Transitions(Recorder):
    """Mean posteriors of the raw network around each task boundary.

    The network predicts as in evaluation under BN: with running statistics, without the adaptor,
    and with a softmax over all classes. Old classes are those of all tasks before the boundary, new
    classes those of the task that begins. Step 0 is the network at the boundary, step s after s
    batches of the new task. At most 500 test samples of the old tasks and 500 of the new one are
    drawn once per boundary, determined by the seed.

    The single class is the middle one of the task before the boundary: the fifth of ten. At the
    last boundary of Split CIFAR-100 it is the paper's 85th class (index 84).
    """

    def prepare(self) -> None:
        """Set up the measurements."""
        self.boundaries = [self._boundary(t) for t in range(1, len(self.stream))]
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
        """Measure at the steps around boundaries."""
        for boundary, offset in self.due.pop(self.position, []):
            if not boundary.x:
                samples = [self.data.test_x[rows] for rows in boundary.groups]
                boundary.x = [self.engine.receive(x) for x in samples]
            boundary.offsets.append(offset)
            boundary.means.append(torch.stack([self._posterior(part) for part in boundary.x]))
            if not any(boundary is b for points in self.due.values() for b, _ in points):
                boundary.x = []

    @torch.no_grad()
    def _posterior(self, x: Tensor) -> Tensor:
        """Return the mean posterior over samples, (C,)."""
        context = self.learner.parts.context
        with evaluation_mode(context.network), context.autocast():
            z, _ = context.network(context.transform(x))
        return z.softmax(1).mean(0)  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the measured offsets of each boundary, and their posteriors."""
        measured = {str(b.task): b for b in self.boundaries if b.offsets}
        means = {task: torch.stack(b.means) for task, b in measured.items()}
        return {"tensors": means, "meta": {task: b.offsets for task, b in measured.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the measurements of another recorder."""
        offsets, means = state["meta"], state["tensors"]
        known = {str(b.task): b for b in self.boundaries if str(b.task) in offsets}
        if not known.keys() == offsets.keys() == means.keys():
            raise ValueError(expected("boundaries of the state", list(offsets), str(list(known))))
        for task, boundary in known.items():
            wanted = (len(offsets[task]), 3, self.data.num_classes)
            if means[task].shape != wanted or not set(offsets[task]) <= set(OFFSETS):
                raise ValueError(expected("offsets of the state", offsets[task], f"in {OFFSETS}"))
            boundary.offsets = list(offsets[task])
            boundary.means = list(self.engine.receive(means[task]).unbind())
        left = {s: [(b, o) for b, o in due if o not in b.offsets] for s, due in self.due.items()}
        self.due = {step: due for step, due in left.items() if due}

    def result(self) -> list[dict[str, Any]]:
        """Return one entry per boundary; tasks are counted from 1."""
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
