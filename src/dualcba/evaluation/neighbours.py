"""Accuracy of classifiers that replace the head: the nearest class mean and the nearest sample."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.evaluation.recorders import BATCH, Recorder
from dualcba.evaluation.scores import Scores
from dualcba.methods.nearest_mean import class_means, class_sums
from dualcba.prediction import STATISTICS


class Neighbours(Recorder):
    """Accuracy at the end of the stream by the features of the memory, in percent.

    `class_mean` predicts the class whose mean of normalised features over the memory is nearest,
    `sample` the class of the nearest sample of the memory. Both use normalised features of samples
    without augmentation. They show how much of a result is due to the last layer.
    """

    def prepare(self) -> None:
        """Nothing is found before the end."""
        self.found: dict[str, dict[str, Any]] = {}

    def result(self) -> dict[str, dict[str, Any]]:
        """Return `{"bn": {"class_mean": {"acc": …, "tasks": […]}, "sample": …}, "ibn": …}`."""
        if self.learner.memory.filled:
            self.found = {s: self._accuracies(s) for s in STATISTICS}
        return self.found

    def scores(self) -> dict[str, Scores]:
        """Return the accuracies over all tasks as the scores `ncm_acc` and `nn_acc`."""
        names = {"ncm_acc": "class_mean", "nn_acc": "sample"}
        return {
            s: {score: found[name]["acc"] for score, name in names.items()}
            for s, found in self.found.items()
        }

    def _accuracies(self, statistics: str) -> dict[str, Any]:
        memory = self.learner.memory
        with self.learner.evaluating(statistics):
            stored, labels = self._features(memory.x[: memory.filled]), memory.y[: memory.filled]
            sums, counts = class_sums(stored, labels, self.data.num_classes)
            present = counts.nonzero().squeeze(1)
            means = class_means(sums, counts)[present]
            return {
                "class_mean": self._accuracy(means, present),
                "sample": self._accuracy(stored, labels),
            }

    def _accuracy(self, points: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the accuracy of the nearest point, over all tasks and of each."""
        tasks = []
        for task in self.stream:
            right = 0
            for part in torch.split(torch.from_numpy(task.test), BATCH):
                h = self._features(self.engine.receive(self.data.test_x[part]))
                y = self.engine.receive(self.data.test_y[part])
                right += int((labels[(h @ points.T).argmax(1)] == y).sum())
            tasks.append(100 * right / len(task.test))
        return {"acc": sum(tasks) / len(tasks), "tasks": tasks}

    def _features(self, x: Tensor) -> Tensor:
        """Return normalised features (n, d) of raw samples."""
        context = self.learner.parts.context
        parts = []
        for part in torch.split(x, BATCH):
            with context.autocast():
                parts.append(context.network(context.transform(part))[1])
        return F.normalize(torch.cat(parts).float())
