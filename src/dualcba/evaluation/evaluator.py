"""Any-time evaluation of a learner on the test tasks, without changing the learner."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.checkpoint import check_same_layout
from dualcba.data import Dataset, Task
from dualcba.errors import expected
from dualcba.evaluation.scores import Ints, Scores, balanced_accuracy, summarize
from dualcba.learner import Learner
from dualcba.prediction import STATISTICS

ANYTIME = {"both": STATISTICS, "bn": ("bn",), "ibn": ("ibn",)}
"""Statistics for evaluations between task ends; only one of them halves the cost."""

KINDS = ("start", "anytime", "end", "both")
"""Kinds of evaluations: before the first step, between task ends, at a task end, or both."""

_serial = itertools.count()


class Evaluator:
    """Counts correct predictions per test task and class, under BN and under IBN statistics.

    The test set is on the device in task order, so that the tasks so far are a prefix. The counts
    stay on the device until `result` reads them. Between task ends, only the statistics in
    `anytime` are evaluated.
    """

    def __init__(
        self,
        learner: Learner,
        data: Dataset,
        stream: Sequence[Task],
        *,
        batch_size: int | None = None,
        anytime: Sequence[str] = STATISTICS,
    ) -> None:
        self.learner = learner
        self.engine = learner.parts.engine
        self.anytime = tuple(anytime)
        self._key = next(_serial)  # captured graphs write into the counts of this evaluator
        self.tasks = len(stream)
        device = learner.device
        cuda = device.type == "cuda"
        self.batch_size = batch_size or (1000 if cuda else 250)
        self.together = 2 if cuda else 1  # batches per call, if enough are left
        rows = torch.from_numpy(np.concatenate([t.test for t in stream]))
        self.sizes = np.array([len(t.test) for t in stream])
        pairs_of, self.pair_sizes, owner = _pairs(self.sizes, data.test_y[rows])
        self.pair_task, self.pair_class = pairs_of
        pairs = len(self.pair_task)
        short = -len(rows) % self.batch_size  # padding, which is not counted
        rows = torch.cat([rows, rows[:1].expand(short)])
        self.x = data.test_x[rows].to(device)
        self.y = data.test_y[rows].to(device)
        self.owner = torch.cat([owner, torch.full((short,), pairs)]).to(device)
        with self.engine.scope():
            self._count = torch.zeros(pairs + 1, dtype=torch.long, device=device)
            self._none = torch.full_like(self._count, -1)  # marks "not evaluated"
        self.points: list[tuple[int, int, str]] = []  # step, task, kind
        self.counts: dict[str, list[Tensor]] = {statistics: [] for statistics in STATISTICS}

    def evaluate(self, kind: str, task: int | None = None, step: int | None = None) -> None:
        """Evaluate now; `kind` is `"start"`, `"anytime"`, `"end"` (of a task) or `"both"`.

        `task` is the current task of the stream, from 0, and `step` the number of batches so far;
        by default, those of the learner.
        """
        learner = self.learner
        task = learner.task if task is None else task
        self.points.append((learner.step if step is None else step, task, kind))
        # any-time evaluation needs only the tasks so far
        tasks = task + 1 if kind == "anytime" else self.tasks
        same = not learner.parts.forward_pass.trained_norm_layers  # then IBN is BN
        for statistics in STATISTICS:
            counts = self.counts[statistics]
            if kind == "anytime" and statistics not in self.anytime:
                counts.append(self._none)
                continue
            if statistics == "ibn" and same and self.counts["bn"][-1] is not self._none:
                counts.append(self.counts["bn"][-1])
                continue
            with learner.evaluating(statistics):
                counts.append(self._correct(tasks))

    def _correct(self, tasks: int) -> Tensor:
        self._count.zero_()
        count = partial(_count, self.learner, self._count)
        for part in portions(int(self.sizes[:tasks].sum()), self.batch_size, self.together):
            inputs = (self.x[part], self.y[part], self.owner[part])
            key = ("evaluate", self._key, part.stop - part.start)
            self.engine.run(key, count, *inputs)
        return self._count.clone()

    def accuracy(self, statistics: str = "bn") -> float:
        """Return the last mean accuracy over the tasks so far; waits for the device.

        If these statistics were not evaluated, it is the accuracy under the others.
        """
        seen = max(self.points[-1][1] + 1, 1)
        if self.counts[statistics][-1] is self._none:
            statistics = self.anytime[0]
        with self.engine.scope():
            last = self._per_task(self.counts[statistics][-1].cpu().numpy()[None, :-1])[0]
        return float((100 * last / self.sizes)[:seen].mean())

    def state_dict(self) -> dict[str, Any]:
        """Return the points so far (`meta`) and their counts (`tensors`), on the device."""
        with self.engine.scope():
            counts = {s: torch.stack(found) for s, found in self.counts.items()}
        return {"tensors": counts, "meta": {"points": [list(point) for point in self.points]}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the points of an evaluator of the same stream."""
        points = [_point(given) for given in state["meta"]["points"]]
        example = self._count.expand(len(points), -1)
        check_same_layout(dict.fromkeys(STATISTICS, example), state["tensors"])
        self.points = points
        for statistics, table in state["tensors"].items():
            evaluated = (table[:, -1] >= 0).tolist()
            rows = self.engine.receive(table).unbind()
            both = zip(rows, evaluated, strict=True)
            self.counts[statistics] = [row if there else self._none for row, there in both]

    def result(self) -> dict[str, Any]:
        """Return scores, accuracy matrices, curves and steps of task ends; waits for the device."""
        steps, task, kind = (np.array(part) for part in zip(*self.points, strict=True))
        anytime = np.isin(kind, ["anytime", "both"])
        end = np.isin(kind, ["end", "both"])
        out: dict[str, Any] = {
            "scores": {},
            "accuracy_matrix": {},
            "anytime": {"step": steps[anytime].tolist(), "task": task[anytime].tolist()},
            "task_ends": steps[end].tolist(),
        }
        for statistics in STATISTICS:
            table = self._table(statistics)
            at = anytime if statistics in self.anytime else np.zeros_like(anytime)
            curve = np.where(np.arange(self.tasks) <= task[:, None], table, np.nan)[at]
            matrix, untrained = table[end], table[kind == "start"][0]
            scores: Scores = summarize(matrix, untrained, curve, task[at])
            last = self._last_counts(statistics)
            scores["newest_recall"] = self._newest_recall(last)
            scores["balanced_acc"] = balanced_accuracy(last, self.pair_sizes, self.pair_class)
            out["scores"][statistics] = scores
            out["accuracy_matrix"][statistics] = matrix.tolist()
            out["anytime"][statistics] = [
                row[: t + 1].tolist() for row, t in zip(curve, task[at], strict=True)
            ]
        return out

    def _table(self, statistics: str) -> NDArray[np.float64]:
        """Return the accuracy in percent at each point (row) on each task (column)."""
        with self.engine.scope():
            counts = torch.stack(self.counts[statistics])[:, :-1].cpu().numpy()
        return np.asarray(100 * self._per_task(counts) / self.sizes)

    def _per_task(self, counts: Ints) -> Ints:
        """Sum counts over the classes of each task: (points, pairs) to (points, tasks)."""
        starts = np.searchsorted(self.pair_task, np.arange(self.tasks))
        return np.add.reduceat(counts, starts, axis=1)

    def _last_counts(self, statistics: str) -> Ints:
        """Return the correct predictions per pair of task and class at the last point."""
        with self.engine.scope():
            counts: Ints = self.counts[statistics][-1][:-1].cpu().numpy()
        return counts

    def _newest_recall(self, counts: Ints) -> float:
        """Return the lowest recall of a class of the newest task, in percent."""
        newest = self.pair_task == self.tasks - 1
        return float((100 * counts / self.pair_sizes)[newest].min())


def _pairs(sizes: Ints, y: Tensor) -> tuple[tuple[Ints, Ints], Ints, Tensor]:
    """Number the pairs of task and class that have test samples, in task order.

    Returns the task and class of each pair, its number of samples, and the pair of each sample.
    """
    task = np.repeat(np.arange(len(sizes)), sizes)
    found, owner, count = np.unique(
        np.stack([task, y.numpy()]), axis=1, return_inverse=True, return_counts=True
    )
    return (found[0], found[1]), count, torch.from_numpy(owner.reshape(-1))


def _point(given: Any) -> tuple[int, int, str]:
    """Return a point from a state; raise a ValueError if it is not valid."""
    whole = isinstance(given, list) and len(given) == 3
    if not whole or [type(part) for part in given] != [int, int, str] or given[2] not in KINDS:
        raise ValueError(expected("a point of the state", given, "its step, task and kind"))
    return given[0], given[1], given[2]


def portions(n: int, size: int, together: int) -> list[slice]:
    """Split n rows, rounded up to whole batches, into parts of `together` batches.

    Remaining batches are separate parts.

    >>> portions(11, 4, 2)
    [slice(0, 8, None), slice(8, 12, None)]
    """
    end, out, start = -(-n // size) * size, [], 0
    while start < end:
        step = size * (together if end - start >= size * together else 1)
        out.append(slice(start, start + step))
        start += step
    return out


def _count(learner: Learner, into: Tensor, x: Tensor, y: Tensor, owner: Tensor) -> None:
    """Add the correct predictions of a batch to the counts of its pairs of task and class."""
    predicted = learner.scores(x).argmax(1)
    into.index_add_(0, owner, (predicted == y).long())
