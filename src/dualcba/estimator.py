"""The scikit-learn face of a learner: `partial_fit` on a stream, `predict` at any time."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from dualcba.errors import at_least, expected
from dualcba.learner import Learner
from dualcba.nets import make_network
from dualcba.randomness import first_weights

Array = NDArray[Any]


class DualCBAClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns from a stream, one pass, while new classes arrive.

    Parameters
    ----------
    network
        A name, as `"mlp"`, or an `nn.Module` with as many outputs as there are classes; it is
        copied, never changed.
    method, buffer, batch_size, lr
        Of the `Learner`.
    learner_options
        Whatever else a `Learner` takes, by name.
    epochs
        How often `fit` passes over its data; `partial_fit` passes once, in the order given.
    random_state
        The seed, or what scikit-learn makes one from.

    Samples are (n, features) or (n, *shape): uint8 as it is, all else as float32. When a task
    begins is inferred from the labels, and only classes that have come are given as answers.

    >>> X, y = np.eye(4).repeat(40, 0), np.repeat(["a", "b", "c", "d"], 40)
    >>> clf = DualCBAClassifier(lr=0.1, buffer=40, random_state=0)
    >>> for part in (slice(0, 80), slice(80, 160)):  # two classes, then two more
    ...     _ = clf.partial_fit(X[part], y[part], classes=["a", "b", "c", "d"])
    >>> clf.predict(np.eye(4)).tolist()
    ['a', 'b', 'c', 'd']
    """

    def __init__(
        self,
        network: str | nn.Module = "mlp",
        *,
        method: str = "er-dual-cba",
        buffer: int = 200,
        batch_size: int = 10,
        lr: float = 0.03,
        learner_options: Mapping[str, Any] | None = None,
        epochs: int = 10,
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.method = method
        self.buffer = buffer
        self.batch_size = batch_size
        self.lr = lr
        self.learner_options = learner_options
        self.epochs = epochs
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Begin anew and learn all of it, `epochs` times, each time in another order."""
        at_least(1, epochs=self.epochs)
        samples, labels = self._given(X, y, first=True)
        self._begin(samples, labels, unique_labels(labels))
        rng = np.random.default_rng(self.seed_)
        for _ in range(self.epochs):
            order = rng.permutation(len(samples))
            self._learn(samples[order], labels[order])
        self.learner_.end_task()
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Go on with the next part of the stream; the first call names all classes to come."""
        first = not hasattr(self, "learner_")
        samples, labels = self._given(X, y, first=first)
        if first:
            if classes is None:
                raise ValueError("classes is None, expected all labels to come, at the first call")
            self._begin(samples, labels, unique_labels(classes))
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            wanted = f"those of the first call, {self.classes_.tolist()}"
            raise ValueError(expected("classes", np.asarray(classes).tolist(), wanted))
        self._learn(samples, labels)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """The class of each sample."""
        check_is_fitted(self, "learner_")
        return np.asarray(self.classes_[self.learner_.predict(self._given(X)[0]).numpy()])

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each of `classes_`; 0 for one that has not come yet."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict_proba(self._given(X)[0]).numpy()

    def _given(self, X: ArrayLike, y: Any = "no_validation", *, first: bool = False) -> Any:
        """Samples as the learner takes them, and labels as they are."""
        types = [np.float32, np.uint8]  # what is neither becomes the first
        found = validate_data(self, X, y, reset=first, dtype=types, allow_nd=True)
        samples, labels = found if isinstance(found, tuple) else (found, None)
        if not first and self.learner_.dtype == torch.float32:
            samples = samples.astype(np.float32)
        if labels is not None:
            check_classification_targets(labels)
        return samples, labels

    def _begin(self, samples: Array, labels: Array, classes: Array) -> None:
        if len(classes) < 2:
            raise ValueError(f"there is {len(classes)} class, expected at least 2")
        _check(labels, classes)
        self.classes_ = classes
        self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        dtype = torch.uint8 if samples.dtype == np.uint8 else torch.float32
        self.learner_ = self._make(samples.shape[1:], dtype)

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Learner:
        number = len(self.classes_)
        if isinstance(self.network, str):
            with first_weights(self.seed_):
                network = make_network(self.network, shape, number)
        else:
            network = copy.deepcopy(self.network)
        given: dict[str, Any] = {
            "method": self.method, "buffer": self.buffer, "batch_size": self.batch_size,
            "lr": self.lr, "seed": self.seed_, "dtype": dtype,
            "boundaries": "inferred", "seen_only": True,
        }  # fmt: skip
        return Learner(network, shape, number, **given | dict(self.learner_options or {}))

    def _learn(self, samples: Array, labels: Array) -> None:
        _check(labels, self.classes_)
        coded = np.searchsorted(self.classes_, labels)
        for start in range(0, len(samples), self.batch_size):
            part = slice(start, start + self.batch_size)
            self.learner_.observe(samples[part], coded[part])

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "learner_" in state:
            learner = self.learner_
            built = (learner.network.input_shape, learner.dtype)
            state = state | {"learner_": (*built, learner.state_dict())}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved = state.pop("learner_", None)
        super().__setstate__(state)
        if saved is not None:
            shape, dtype, learnt = saved
            self.learner_ = self._make(shape, dtype)
            self.learner_.load_state_dict(learnt)


def _check(labels: Array, classes: Array) -> None:
    strange = np.setdiff1d(labels, classes)
    if len(strange):
        raise ValueError(expected("y", strange.tolist(), f"some of classes, {classes.tolist()}"))
