"""Accuracy of classifiers on the memory's features: class means, nearest sample, discriminant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.evaluation.recorders import BATCH, Recorder
from dualcba.evaluation.scores import Scores
from dualcba.methods.discriminant import ShrinkageLDA
from dualcba.methods.nearest_mean import class_means, class_sums
from dualcba.prediction import STATISTICS


class Neighbours(Recorder):
    """Accuracy in percent of classifiers on the memory's features, at the end of the stream.

    `class_mean` predicts the class with the nearest mean of normalised features, `sample` the class
    of the nearest sample, and `discriminant` is a linear discriminant with a shrunk covariance. All
    use normalised features without augmentation. They show how much of a result is due to the last
    layer.
    """

    def prepare(self) -> None:
        """Initialise; all measurements are made at the end."""
        self.found: dict[str, dict[str, Any]] = {}

    def result(self) -> dict[str, dict[str, Any]]:
        """Return `{"bn": {"class_mean": {"acc": …, "tasks": […]}, "sample": …, …}, "ibn": …}`."""
        if self.learner.memory.filled:
            self.found = {s: self._accuracies(s) for s in STATISTICS}
        return self.found

    def scores(self) -> dict[str, Scores]:
        """Return the accuracies over all tasks as the scores `ncm_acc`, `nn_acc` and `lda_acc`."""
        names = {"ncm_acc": "class_mean", "nn_acc": "sample", "lda_acc": "discriminant"}
        return {
            s: {score: found[name]["acc"] for score, name in names.items()}
            for s, found in self.found.items()
        }

    def _accuracies(self, statistics: str) -> dict[str, Any]:
        memory, C = self.learner.memory, self.data.num_classes
        with self.learner.evaluating(statistics):
            stored, labels = self._features(memory.x[: memory.filled]), memory.y[: memory.filled]
            sums, counts = class_sums(stored, labels, C)
            present = counts.nonzero().squeeze(1)
            means = class_means(sums, counts)[present]
            lda = ShrinkageLDA(stored.shape[1], C, stored.device)
            lda.update(stored.double(), labels)
            weight, bias = lda.classifier()
            return self._tested({
                "class_mean": lambda h: present[(h @ means.T).argmax(1)],
                "sample": lambda h: labels[(h @ stored.T).argmax(1)],
                "discriminant": lambda h: (h.double() @ weight + bias).argmax(1),
            })  # fmt: skip

    def _tested(self, classifiers: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Any]:
        """Return the accuracy of each classifier, over all tasks and per task."""
        tasks: dict[str, list[float]] = {name: [] for name in classifiers}
        for task in self.stream:
            right = dict.fromkeys(classifiers, 0)
            for part in torch.split(torch.from_numpy(task.test), BATCH):
                h = self._features(self.engine.receive(self.data.test_x[part]))
                y = self.engine.receive(self.data.test_y[part])
                for name, classify in classifiers.items():
                    right[name] += int((classify(h) == y).sum())
            for name, count in right.items():
                tasks[name].append(100 * count / len(task.test))
        return {name: {"acc": sum(t) / len(t), "tasks": t} for name, t in tasks.items()}

    def _features(self, x: Tensor) -> Tensor:
        """Return normalised features (n, d) of raw samples."""
        context = self.learner.parts.context
        parts = []
        for part in torch.split(x, BATCH):
            with context.autocast():
                parts.append(context.network(context.transform(part))[1])
        return F.normalize(torch.cat(parts).float())
