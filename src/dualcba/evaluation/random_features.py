"""A control without network and memory: a linear discriminant on random features of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.checkpoint import check_same_layout
from dualcba.errors import expected
from dualcba.evaluation.recorders import BATCH, Recorder
from dualcba.evaluation.scores import Scores
from dualcba.methods.discriminant import ShrinkageLDA
from dualcba.prediction import STATISTICS
from dualcba.randomness import generator

FEATURES = 2000
"""The number of random features."""


class RandomFeatures(Recorder):
    """Accuracy in percent of a classifier on random features, at the end of the stream.

    Random Fourier features φ = √(2/D)·cos(Wx + b) of the normalised pixels x approximate a Gaussian
    kernel of width √(d/2), where d is the number of pixels. The classifier predicts the nearest
    class mean in the Mahalanobis distance of the within-class covariance, with OAS shrinkage. It
    sees each sample of the stream once, stores only sums, and needs neither tasks nor a memory. The
    features of a method are useful only if it is better than this.


    References
    ----------
    Prabhu et al., RanDumb: a simple approach that questions the efficacy of continual
    representation learning, 2024. Chen et al., Shrinkage algorithms for MMSE covariance estimation,
    2010.
    """

    first_only = True

    def prepare(self) -> None:
        """Draw the features."""
        d = int(np.prod(self.data.input_shape))
        rng = generator(self.learner.seed, "random-features")
        weight, phase = rng.normal(0, np.sqrt(2 / d), (d, FEATURES)), rng.random(FEATURES)
        self.weight = self.engine.receive(torch.from_numpy(weight).float())
        self.phase = self.engine.receive(torch.from_numpy(2 * np.pi * phase).float())
        self.lda = ShrinkageLDA(FEATURES, self.data.num_classes, self.weight.device)
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def before_step(self, x: Tensor, y: Tensor) -> None:
        """Collect the new batch; sums are updated with several batches at a time."""
        self.waiting.append((x.clone(), y.clone()))
        if sum(len(labels) for _, labels in self.waiting) >= BATCH:
            self._learn()

    def _learn(self) -> None:
        if self.waiting:
            x, y = (torch.cat(part) for part in zip(*self.waiting, strict=True))
            self.lda.update(self.features(x), y)
            self.waiting = []

    def features(self, x: Tensor) -> Tensor:
        """Return the features (n, D) of raw samples, in float64."""
        pixels = self.learner.parts.context.transform(x).flatten(1).float()
        phi = torch.addmm(self.phase, pixels, self.weight).cos().double()
        return phi.mul_(np.sqrt(2 / FEATURES))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, and the batches not yet added to them."""
        x = {f"x{k}": x for k, (x, _) in enumerate(self.waiting)}
        y = {f"y{k}": y for k, (_, y) in enumerate(self.waiting)}
        meta = {"waiting": len(self.waiting)}
        return {"tensors": self.lda.tensors() | x | y, "meta": meta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the sums of another recorder."""
        live, given, waiting = self.lda.tensors(), dict(state["tensors"]), state["meta"]["waiting"]
        if type(waiting) is not int or not 0 <= waiting <= BATCH:
            wanted = f"a whole number from 0 to {BATCH}"
            raise ValueError(expected("batches of random features", waiting, wanted))
        pairs = [(given.pop(f"x{k}", None), given.pop(f"y{k}", None)) for k in range(waiting)]
        check_same_layout(live, given)
        if any(x is None or y is None or len(x) != len(y) for x, y in pairs):
            raise ValueError("the batches of random features and their labels differ in length")
        for name, tensor in live.items():
            tensor.copy_(self.engine.receive(given[name]))
        self.waiting = [(self.engine.receive(x), self.engine.receive(y)) for x, y in pairs]

    def result(self) -> dict[str, Any]:
        """Return `{"acc": …, "tasks": […]}`."""
        self._learn()
        weight, bias = self.lda.classifier()
        tasks = []
        for task in self.stream:
            right = 0
            for part in torch.split(torch.from_numpy(task.test), BATCH):
                scores = self.features(self.engine.receive(self.data.test_x[part])) @ weight + bias
                y = self.engine.receive(self.data.test_y[part])
                right += int((scores.argmax(1) == y).sum())
            tasks.append(100 * right / len(task.test))
        self.acc = sum(tasks) / len(tasks)
        return {"acc": self.acc, "tasks": tasks}

    def scores(self) -> dict[str, Scores]:
        """Return the accuracy over all tasks as the score `random_acc`, equal under BN and IBN."""
        return {s: {"random_acc": self.acc} for s in STATISTICS}
