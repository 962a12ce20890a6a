"""Accuracy with the task of each test sample known, which is free of bias between tasks."""

from __future__ import annotations

from typing import Any

import torch

from dualcba.data import Task
from dualcba.evaluation.recorders import BATCH, Recorder
from dualcba.evaluation.scores import Scores
from dualcba.prediction import STATISTICS


class TaskAware(Recorder):
    """Accuracy in percent among the classes of each sample's own task, at the end of the stream.

    The literature calls it task-incremental accuracy. Its difference to ACC is the share of samples
    lost to classes of other tasks, by a bias between tasks or because tasks are similar.
    """

    def prepare(self) -> None:
        """Initialise; all measurements are made at the end."""
        self.found: dict[str, dict[str, Any]] = {}

    def result(self) -> dict[str, dict[str, Any]]:
        """Return `{"bn": {"acc": …, "tasks": […]}, "ibn": …}`."""
        for statistics in STATISTICS:
            with self.learner.evaluating(statistics):
                tasks = [self._accuracy(task) for task in self.stream]
            self.found[statistics] = {"acc": sum(tasks) / len(tasks), "tasks": tasks}
        return self.found

    def _accuracy(self, task: Task) -> float:
        own = torch.tensor(sorted(task.classes), device=self.learner.device)
        right = 0
        for part in torch.split(torch.from_numpy(task.test), BATCH):
            scores = self.learner.scores(self.engine.receive(self.data.test_x[part]))
            y = self.engine.receive(self.data.test_y[part])
            right += int((own[scores[:, own].argmax(1)] == y).sum())
        return 100 * right / len(task.test)

    def scores(self) -> dict[str, Scores]:
        """Return the accuracy over all tasks as the score `task_aware_acc`."""
        return {s: {"task_aware_acc": found["acc"]} for s, found in self.found.items()}
