"""Common classifiers for streams, with a `learn` and a `predict` for batches.

All use the defaults of their library. Those with a memory store the same number of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

from dualcba.estimator import DualCBAClassifier

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
MEMORY = 200
"""Number of samples in the memory of each contender that has one."""


class Contender(Protocol):
    """A classifier of a stream."""

    def learn(self, x: Floats, y: Labels) -> None:
        """Learn a batch in one pass."""

    def predict(self, x: Floats) -> Labels:
        """Return the label of each sample."""


class Ours:
    """`DualCBAClassifier`, with its defaults or another method."""

    def __init__(self, seed: int, **given: Any) -> None:
        self.model = DualCBAClassifier(buffer=MEMORY, random_state=seed, **given)

    def learn(self, x: Floats, y: Labels) -> None:
        """Learn a batch, whose classes are not announced."""
        self.model.partial_fit(x, y)

    def predict(self, x: Floats) -> Labels:
        """Return labels."""
        return self.model.predict(x)


class Linear:
    """scikit-learn's `SGDClassifier`, which needs all classes at the first call."""

    def __init__(self, seed: int, classes: int) -> None:
        self.model, self.classes = SGDClassifier(random_state=seed), np.arange(classes)

    def learn(self, x: Floats, y: Labels) -> None:
        """Learn a batch."""
        self.model.partial_fit(x, y, classes=self.classes)

    def predict(self, x: Floats) -> Labels:
        """Return labels."""
        found: Labels = self.model.predict(x)
        return found


class NearestMean:
    """Predicts the class with the nearest mean over the whole stream."""

    def __init__(self, classes: int) -> None:
        self.sums: NDArray[np.float64] | None = None
        self.counts = np.zeros(classes)

    def learn(self, x: Floats, y: Labels) -> None:
        """Add samples to the sums of their classes."""
        if self.sums is None:
            self.sums = np.zeros((len(self.counts), x.shape[1]))
        np.add.at(self.sums, y, x)
        np.add.at(self.counts, y, 1)

    def predict(self, x: Floats) -> Labels:
        """Return labels."""
        assert self.sums is not None
        seen = self.counts.nonzero()[0]
        means = self.sums[seen] / self.counts[seen, None]
        return np.asarray(seen[_nearest(x, means)])


class NearestSample:
    """Predicts the label of the nearest sample in a reservoir of the stream."""

    def __init__(self, seed: int, size: int = MEMORY) -> None:
        self.rng, self.size, self.met = np.random.default_rng(seed), size, 0
        self.x: list[Floats] = []
        self.y: list[int] = []

    def learn(self, x: Floats, y: Labels) -> None:
        """Add samples by reservoir sampling."""
        for sample, label in zip(x, y.tolist(), strict=True):
            self.met += 1
            if len(self.x) < self.size:
                self.x.append(sample)
                self.y.append(label)
            elif (place := int(self.rng.integers(self.met))) < self.size:
                self.x[place], self.y[place] = sample, label

    def predict(self, x: Floats) -> Labels:
        """Return labels."""
        return np.asarray(self.y)[_nearest(x, np.stack(self.x))]


def _nearest(x: Floats, points: NDArray[Any]) -> NDArray[np.intp]:
    """Return the index of the nearest point of each sample."""
    return np.asarray(((points**2).sum(1) - 2 * x @ points.T).argmin(1))


class River:
    """A model of river, which takes one sample at a time as a dict."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def learn(self, x: Floats, y: Labels) -> None:
        """Learn the samples of a batch one by one."""
        for sample, label in zip(x.tolist(), y.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(sample)), label)

    def predict(self, x: Floats) -> Labels:
        """Return labels; 0 before the model has learnt any."""
        answers = [self.model.predict_one(dict(enumerate(sample))) for sample in x.tolist()]
        return np.asarray([0 if answer is None else answer for answer in answers])


def _scaled(model: Any) -> Any:
    return import_module("river.preprocessing").StandardScaler() | model


def _river(module: str, name: str, **given: Any) -> Any:
    return getattr(import_module(f"river.{module}"), name)(**given)


Make = Callable[[int, int], Contender]

SEPARATE = "separate statistics"
"""`DualCBAClassifier` with separate batch statistics for the new batch and the memory draw."""

HEAD = {"readout": "head"}
"""Predictions by the last layer alone."""

CONTENDERS: dict[str, Make] = {
    "DualCBAClassifier": lambda seed, classes: Ours(seed),
    "DualCBAClassifier head": lambda seed, classes: Ours(seed, learner_options=HEAD),
    "DualCBAClassifier ncm": lambda seed, classes: Ours(seed, learner_options={"readout": "ncm"}),
    "DualCBAClassifier lda": lambda seed, classes: Ours(seed, learner_options={"readout": "lda"}),
    "DualCBAClassifier both-lda": lambda seed, classes: Ours(
        seed, learner_options={"readout": "both-lda"}
    ),
    "ER": lambda seed, classes: Ours(seed, method="er", learner_options=HEAD),
    SEPARATE: lambda seed, classes: Ours(seed, learner_options={**HEAD, "forward": "split"}),
    "nearest sample": lambda seed, classes: NearestSample(seed),
    "nearest class mean": lambda seed, classes: NearestMean(classes),
    "SGDClassifier": Linear,
    "river softmax": lambda seed, classes: River(
        _scaled(_river("linear_model", "SoftmaxRegression"))
    ),
    "river naive Bayes": lambda seed, classes: River(_river("naive_bayes", "GaussianNB")),
    "river Hoeffding tree": lambda seed, classes: River(_river("tree", "HoeffdingTreeClassifier")),
    "river adaptive forest": lambda seed, classes: River(
        _river("forest", "ARFClassifier", seed=seed)
    ),
}
"""Contenders by name: functions of the seed and the number of classes."""
