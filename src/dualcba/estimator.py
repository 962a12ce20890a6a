"""The scikit-learn face of a learner: `partial_fit` on a stream, `predict` at any time."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from dualcba.errors import at_least, expected, unknown
from dualcba.learner import Learner
from dualcba.methods import Method
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
        Of the `Learner`; a `Method` object is copied too.
    learner_options
        Whatever else a `Learner` takes, by name, but for `seed`, `dtype` and `boundaries`, which
        follow from `random_state`, from the samples and from the labels.
    epochs
        How often `fit` passes over its data; `partial_fit` passes once, in the order given.
    random_state
        The seed, or what scikit-learn makes one from.

    Samples are (n, features) or (n, *shape): uint8 is kept as it is and by default reaches the
    network in [0, 1], all else is float32. When a task begins is inferred from the labels, and
    only classes that have come are given as answers, unless the option `seen_only` is False.

    A `fit` or a first `partial_fit` that fails leaves the classifier as it was.

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
        method: str | Method = "er-dual-cba",
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
        with self._or_as_before():
            samples, labels = self._given(X, y, first=True)
            self._begin(samples, labels, unique_labels(labels))
            if self.epochs > 1 and self.learner_.method.single_pass:
                name = type(self.learner_.method).__name__
                wanted = f"1: {name} only makes sense in a single pass"
                raise ValueError(expected("epochs", self.epochs, wanted))
            rng = np.random.default_rng(self.seed_)
            for epoch in range(self.epochs):
                order = rng.permutation(len(samples))
                self._learn(samples[order], labels[order], again=epoch > 0)
            self.learner_.end_task()
            self.learner_.check_finite()
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Go on with the next part of the stream; the first call names all classes to come.

        Parameters that are set after the first call wait for the next `fit`.
        """
        first = not hasattr(self, "learner_")
        with self._or_as_before():
            samples, labels = self._given(X, y, first=first)
            if first:
                if classes is None:
                    wanted = "all labels to come, at the first call"
                    raise ValueError(expected("classes", classes, wanted))
                self._begin(samples, labels, _distinct(classes))
            elif classes is not None and not np.array_equal(_distinct(classes), self.classes_):
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
        found = validate_data(
            self, X, y, reset=first, dtype=types, allow_nd=True, force_writeable=True
        )  # torch warns of what is read-only, as joblib's memory maps are
        samples, labels = found if isinstance(found, tuple) else (found, None)
        if not first and self.learner_.dtype == torch.float32:
            samples = samples.astype(np.float32)
        elif not first and samples.dtype != np.uint8:
            wanted = "uint8, as at the first call"
            raise ValueError(expected("dtype of X", str(np.asarray(X).dtype), wanted))
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
        self._recipe = (self.network, samples.shape[1:], self._arguments(dtype))
        self.learner_ = self._make()

    def _arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Those of the learner, by name."""
        mine: dict[str, Any] = {
            "method": self.method, "buffer": self.buffer, "batch_size": self.batch_size,
            "lr": self.lr, "seed": self.seed_, "dtype": dtype, "boundaries": "inferred",
        }  # fmt: skip
        given = {} if self.learner_options is None else self.learner_options
        if not isinstance(given, Mapping):
            raise ValueError(expected("learner_options", given, "names and values"))
        every = inspect.signature(Learner).parameters.values()
        free = [p.name for p in every if p.kind == p.KEYWORD_ONLY and p.name not in mine]
        for name in given:
            if name in {p.name for p in every}.difference(free):
                wanted = "none that the classifier sets itself"
                raise ValueError(expected("a name in learner_options", name, wanted))
            if name not in free:
                raise ValueError(unknown("learner option", name, free))
        return {"seen_only": True, **mine, **given}

    def _make(self) -> Learner:
        """A learner by the recipe, which parameters set later do not change."""
        network, shape, options = self._recipe
        number = len(self.classes_)
        if isinstance(network, str):
            with first_weights(self.seed_):
                network = make_network(network, shape, number)
        else:
            network = copy.deepcopy(network)
        return Learner(network, shape, number, **copy.deepcopy(options))

    def _learn(self, samples: Array, labels: Array, *, again: bool = False) -> None:
        _check(labels, self.classes_)
        coded = np.searchsorted(self.classes_, labels)
        size = self.learner_.batch_size
        for start in range(0, len(samples), size):
            part = slice(start, start + size)
            self.learner_.observe(samples[part], coded[part], again=again)

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """What fails within leaves every attribute as it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "learner_" in state:
            learnt = self.learner_.state_dict()
            tensors = {k: v.cpu() for k, v in learnt["tensors"].items()}
            state = state | {"learner_": learnt | {"tensors": tensors}}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        learnt = state.pop("learner_", None)
        super().__setstate__(state)
        if learnt is not None:
            self.learner_ = self._make()
            self.learner_.load_state_dict(learnt)


def _distinct(classes: ArrayLike) -> Array:
    try:
        return np.asarray(unique_labels(classes))
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"classes cannot be read as a list of labels: {reason}") from error


def _check(labels: Array, classes: Array) -> None:
    strange = np.setdiff1d(labels, classes)
    if len(strange):
        raise ValueError(expected("y", strange.tolist(), f"some of classes, {classes.tolist()}"))
