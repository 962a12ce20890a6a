"""Scores a learner on the test tasks at any time, without leaving a trace in it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data import Dataset, Task
from dualcba.evaluation.scores import Scores, summarize
from dualcba.learner import Learner
from dualcba.prediction import NORMS

ANYTIME = {"both": NORMS, "bn": ("bn",), "ibn": ("ibn",)}
"""What may be scored between task ends, where twice a point is too dear."""

_serial = itertools.count()


class Evaluator:
    """Counts correct answers per test task, under BN and under IBN, on the device.

    The test set lies there in task order, so the tasks seen so far are a prefix. Counts stay on
    the device until `result` asks for them.
    """

    def __init__(
        self,
        learner: Learner,
        data: Dataset,
        stream: Sequence[Task],
        *,
        batch_size: int | None = None,
        anytime: Sequence[str] = NORMS,
    ) -> None:
        self.learner = learner
        self.anytime = tuple(anytime)
        self._key = next(_serial)  # graphs are the evaluator's own: they write into its counts
        self.tasks = len(stream)
        device = learner.device
        cuda = device.type == "cuda"
        self.batch_size = batch_size or (1000 if cuda else 250)
        self.together = 2 if cuda else 1  # batches at once, where there are as many left
        rows = torch.from_numpy(np.concatenate([t.test for t in stream]))
        self.sizes = np.array([len(t.test) for t in stream])
        owner = torch.repeat_interleave(torch.arange(self.tasks), torch.from_numpy(self.sizes))
        short = -len(rows) % self.batch_size  # padding answers for no task
        rows = torch.cat([rows, rows[:1].expand(short)])
        self.x = data.test_x[rows].to(device)
        self.y = data.test_y[rows].to(device)
        self.owner = torch.cat([owner, torch.full((short,), self.tasks)]).to(device)
        with learner.engine.scope():
            self._count = torch.zeros(self.tasks + 1, dtype=torch.long, device=device)
            self._none = torch.full_like(self._count, -1)  # in the place of what is not scored
        self.points: list[tuple[int, int, str]] = []  # step, task, kind
        self.counts: dict[str, list[Tensor]] = {norm: [] for norm in NORMS}

    def evaluate(self, kind: str, task: int | None = None) -> None:
        """Score now; `kind` is `"start"`, `"anytime"`, `"end"` (of a task) or `"both"`.

        `task` is the stream's current task, from 0; by default the learner's.
        """
        learner = self.learner
        task = learner.task if task is None else task
        self.points.append((learner.step, task, kind))
        # where only the tasks so far are asked for, the others are not run
        tasks = task + 1 if kind == "anytime" else self.tasks
        for norm in NORMS:
            if kind == "anytime" and norm not in self.anytime:
                self.counts[norm].append(self._none)
                continue
            alike = norm == "ibn" and not learner.answers.norms  # nothing for IBN to estimate
            if alike and self.counts["bn"][-1] is not self._none:
                self.counts[norm].append(self.counts["bn"][-1])
                continue
            with learner.evaluating(norm):
                self.counts[norm].append(self._correct(tasks))

    def _correct(self, tasks: int) -> Tensor:
        self._count.zero_()
        count = partial(_count, self.learner, self._count)
        for part in portions(int(self.sizes[:tasks].sum()), self.batch_size, self.together):
            inputs = (self.x[part], self.y[part], self.owner[part])
            key = ("evaluate", self._key, part.stop - part.start)
            self.learner.engine.run(key, count, *inputs)
        return self._count.clone()

    def accuracy(self, norm: str = "bn") -> float:
        """Mean over the tasks so far at the last point; waits for the device."""
        seen = max(self.points[-1][1] + 1, 1)
        if self.counts[norm][-1] is self._none:
            norm = self.anytime[0]
        with self.learner.engine.scope():
            last = self.counts[norm][-1][:seen].cpu().numpy()
        return float((100 * last / self.sizes[:seen]).mean())

    def result(self) -> dict[str, Any]:
        """Scores, accuracy matrices and any-time curves; waits for the device once."""
        steps, task, kind = (np.array(part) for part in zip(*self.points, strict=True))
        anytime = np.isin(kind, ["anytime", "both"])
        end = np.isin(kind, ["end", "both"])
        out: dict[str, Any] = {
            "scores": {},
            "accuracy_matrix": {},
            "anytime": {"step": steps[anytime].tolist(), "task": task[anytime].tolist()},
        }
        for norm in NORMS:
            table = self._table(norm)
            at = anytime if norm in self.anytime else np.zeros_like(anytime)
            curve = np.where(np.arange(self.tasks) <= task[:, None], table, np.nan)[at]
            matrix, untrained = table[end], table[kind == "start"][0]
            scores: Scores = summarize(matrix, untrained, curve, task[at])
            out["scores"][norm] = scores
            out["accuracy_matrix"][norm] = matrix.tolist()
            out["anytime"][norm] = [
                row[: t + 1].tolist() for row, t in zip(curve, task[at], strict=True)
            ]
        return out

    def _table(self, norm: str) -> NDArray[np.float64]:
        with self.learner.engine.scope():
            counts = torch.stack(self.counts[norm])[:, : self.tasks].cpu().numpy()
        return np.asarray(100 * counts / self.sizes)


def portions(n: int, size: int, together: int) -> list[slice]:
    """n rows, rounded up to whole batches, several at once as long as that many are left.

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
    """Add the number of correct answers of a batch to each task's count."""
    answers = learner.scores(x).argmax(1)
    into.index_add_(0, owner, (answers == y).long())
