"""Prequential accuracy: each batch is predicted before it is trained on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dualcba.checkpoint import Tensors, check_same_layout
from dualcba.evaluation.recorders import Recorder
from dualcba.evaluation.scores import Scores
from dualcba.learner import Learner
from dualcba.normalization.statistics import RunningStatistics

EVERY = 5
"""Steps between two IBN estimates, if `eval_every` is 0."""

_serial = itertools.count()


class Prequential(Recorder):
    """Accuracy on arriving batches in percent, over all tasks and per task.

    Each batch of the first pass over a task is predicted under the statistics of the option
    `anytime`. Samples without a label do not count, nor samples that arrived before, such as
    exemplars or repeated labelled batches. BN uses the current running statistics. Since an IBN
    estimate is a pass over the memory, IBN is estimated only before the first step with two samples
    in the memory, and before steps that are a multiple of `eval_every` (or of 5 if that is 0);
    other steps use the last estimate.
    """

    first_only = True

    def prepare(self) -> None:
        """Set up the measurements."""
        self.starts = [0, *itertools.accumulate(self.lengths)]
        self.every = self.scoring.every or EVERY
        self._key = next(_serial)  # captured graphs write into the counts of this recorder
        layers = self.learner.parts.forward_pass.trained_norm_layers
        asked = tuple(self.scoring.statistics)
        self.statistics = asked if layers else asked[:1]  # without these layers, IBN is BN
        self._estimated = False
        with self.engine.scope():
            self._running, self._kept = RunningStatistics(layers), RunningStatistics(layers)
            zeros = torch.zeros(2, dtype=torch.long, device=self.learner.device)
            self._counts = {s: zeros.clone() for s in self.statistics}  # correct, total
        self.marks: dict[str, list[Tensor]] = {s: [] for s in self.statistics}  # at task starts

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Predict the batch in the first pass over its task."""
        step = self.position
        task = len(self.marks[self.statistics[0]])
        if task < len(self.lengths) and step == self.starts[task]:
            self._mark()
            task += 1
        start, length = self.starts[task - 1], self.lengths[task - 1]
        if step - start < length // self.scoring.epochs:
            for statistics, counts in self._counts.items():
                count = partial(_count, self.learner, counts)
                key = ("prequential", self._key, statistics, len(x))
                with self._evaluating(statistics):
                    self.engine.run(key, count, x, y)

    def _mark(self) -> None:
        for statistics, counts in self._counts.items():
            self.marks[statistics].append(counts.clone())

    @contextmanager
    def _evaluating(self, statistics: str) -> Iterator[None]:
        """Evaluate under BN statistics, new IBN statistics, or the last IBN estimate."""
        learner = self.learner
        if statistics == "bn" or learner.memory.filled < 2:
            with learner.evaluating("bn"):
                yield
        elif not self._estimated or self.position % self.every == 0:
            with learner.evaluating("ibn"):
                self._kept.save()
                self._estimated = True
                yield
        else:
            with learner.evaluating("bn"), self._under_kept():
                yield

    @contextmanager
    def _under_kept(self) -> Iterator[None]:
        self._running.save()
        self._kept.restore()
        try:
            yield
        finally:
            self._running.restore()

    def _live(self) -> Tensors:
        """Return the tensors that are updated in place: the counts and the last IBN estimate."""
        averages, counts = self._kept.saved
        kept = {f"kept.{i}": t for i, t in enumerate([*averages, *counts])}
        return {f"counts.{s}": t for s, t in self._counts.items()} | kept

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, the counts at task starts, and the last IBN estimate."""
        tensors = self._live()
        if self.marks[self.statistics[0]]:
            tensors |= {f"marks.{s}": torch.stack(marks) for s, marks in self.marks.items()}
        return {"tensors": tensors, "meta": {"estimated": self._estimated}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the counts of another recorder."""
        live, given = self._live(), dict(state["tensors"])
        marks = {s: given.pop(f"marks.{s}", None) for s in self.statistics}
        check_same_layout(live, given)
        for name, tensor in live.items():
            tensor.copy_(self.engine.receive(given[name]))
        for statistics, table in marks.items():
            rows = [] if table is None else list(self.engine.receive(table).unbind())
            self.marks[statistics] = rows
        self._estimated = bool(state["meta"]["estimated"])

    def result(self) -> dict[str, dict[str, Any]]:
        """Return `{"bn": {"accuracy": …, "tasks": […]}, …}` for each of the statistics."""
        self._mark()
        tables = {s: torch.stack(self.marks[s]).cpu().diff(dim=0) for s in self.statistics}
        first = tables[self.statistics[0]]
        self.found = {s: _summary(tables.get(s, first)) for s in self.scoring.statistics}
        return self.found

    def scores(self) -> dict[str, Scores]:
        """Return the accuracy over all tasks as the score `prequential`."""
        return {s: {"prequential": found["accuracy"]} for s, found in self.found.items()}


def _count(learner: Learner, into: Tensor, x: Tensor, y: Tensor) -> None:
    """Add the numbers of correct predictions and of labels in a batch; a hidden label is −1."""
    predicted = learner.scores(x).argmax(1)
    into.add_(torch.stack([(predicted == y).sum(), (y >= 0).sum()]))


def _summary(counts: Tensor) -> dict[str, Any]:
    """Return the accuracy over all tasks and per task, from counts with a row per task."""
    return {"accuracy": _percent(counts.sum(0)), "tasks": [_percent(row) for row in counts]}


def _percent(counts: Tensor) -> float | None:
    right, labels = counts.tolist()
    return 100 * right / labels if labels else None
