"""A scikit-learn classifier around `Learner`: `fit`, `partial_fit`, `predict`, `predict_proba`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from dualcba.data.augmentation import is_colour
from dualcba.data.dataset import plain_tensor
from dualcba.engine.threads import threads_for
from dualcba.errors import at_least, expected, reason
from dualcba.learner import Learner
from dualcba.methods import Method
from dualcba.nets import make_network
from dualcba.options import with_recipe
from dualcba.randomness import first_weights
from dualcba.serving import Snapshot, export_model
from dualcba.tasks.labels import as_array, as_list, labels_to_json, no_mask
from dualcba.training.growth import widened
from dualcba.training.precision import default_modes
from dualcba.training.unannounced import (
    FIRST_OUTPUTS,
    even_batches,
    learner_options,
    unannounced_options,
)

Array = NDArray[Any]


class DualCBAClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for streams in which new classes arrive over time.

    Samples have the shape (n, features) or (n, *shape). uint8 samples are stored as uint8 and by
    default scaled to [0, 1]; other samples are converted to float32. Each feature of float vectors
    is standardised by its running mean and variance, unless the learner option `standardise` is
    False or there is a `transform`; the memory stores raw vectors. Task boundaries are inferred
    from the labels. Classes need not be announced: each label that has not occurred before is a new
    class, and the network grows, unless `classes` was given to `partial_fit`. Only classes that
    have been observed are predicted; if `classes` was given, the learner option `seen_only` can
    change that.

    Predictions use IBN statistics with every method, unless the learner option `ibn` is False: a
    call with as few as two samples can change the weights so much that the running statistics no
    longer match them. A call with more than `batch_size` samples is split into batches of even
    size.

    On a CPU the network `"mlp"` uses one thread, as runs of the command line do, so results do not
    depend on the number of threads. With other networks, the last bits of results can depend on it.

    If `fit` or the first `partial_fit` raises an error, the classifier is left unchanged.

    Parameters
    ----------
    network
        The name of a network, such as `"mlp"`, or an `nn.Module` with one output per class. A
        module is copied and not modified. If classes are not announced, it may have any number of
        outputs; more are added when classes arrive.
    method, buffer, batch_size, lr
        As for `Learner`. The default of `lr` depends on the optimiser; for SGD it is 0.03. A
        `Method` object is copied.
    learner_options
        Other keyword arguments of `Learner`, such as {"optimizer": "adam"}, except `seed`, `dtype`
        and `boundaries`, which the classifier sets itself.
    epochs
        Number of passes of `fit` over the data. `partial_fit` makes one pass in the given order.
    random_state
        An int, a `RandomState` instance or None, as in scikit-learn.

    Attributes
    ----------
    classes_
        The class labels: those of `fit` or `classes` in sorted order, then others in order of
        arrival. Scorers of scikit-learn that use probabilities, such as `roc_auc`, need them
        sorted.
    learner_
        The `Learner`.
    seed_
        The seed of the learner, drawn from `random_state`.

    >>> X, y = np.eye(4).repeat(40, 0), np.repeat(["a", "b", "c", "d"], 40)
    >>> clf = DualCBAClassifier(lr=0.1, buffer=40, random_state=0)
    >>> for part in (slice(0, 80), slice(80, 160)):  # two classes, then two more
    ...     _ = clf.partial_fit(X[part], y[part])
    >>> clf.predict(np.eye(4)).tolist()
    ['a', 'b', 'c', 'd']
    """

    def __init__(
        self,
        network: str | nn.Module = "mlp",
        *,
        method: str | Method = "er-balanced-cba",
        buffer: int = 200,
        batch_size: int = 10,
        lr: float | None = None,
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
        """Train a new learner on (X, y) for `epochs` passes, each in a new random order."""
        at_least(1, epochs=self.epochs)
        with self._restore_on_error(), self._threads():
            samples, labels = self._validate(X, y, first=True)
            self._start(samples, labels, unique_labels(labels))
            self._announced = False  # a later `partial_fit` may bring further classes
            if self.epochs > 1 and self.learner_.method.single_pass:
                name = type(self.learner_.method).__name__
                wanted = f"1: {name} only makes sense in a single pass"
                raise ValueError(expected("epochs", self.epochs, wanted))
            rng = np.random.default_rng(self.seed_)
            for epoch in range(self.epochs):
                order = rng.permutation(len(samples))
                self._observe(samples[order], labels[order], again=epoch > 0)
            self.learner_.end_task()
            self.learner_.check_finite()
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Train on the next part of the stream, in one pass.

        Changes of parameters after the first call take effect at the next `fit`.

        Parameters
        ----------
        X, y
            Samples and labels.
        classes
            All classes of the stream, given in the first call; any other label is then an error.
            By default every label that has not occurred before is a new class.
        """
        first = not hasattr(self, "learner_")
        with self._restore_on_error(), self._threads():
            samples, labels = self._validate(X, y, first=first)
            if first:
                given = None if classes is None else _unique_classes(classes)
                self._start(samples, labels, given)
            elif classes is not None:
                self._check_same_classes(classes)
            self._grow_if_needed(labels)
            several = len(samples) > self.learner_.batch_size  # `observe` undoes a single step
            with self._restore_learner_on_error() if several and not first else nullcontext():
                self._observe(samples, labels)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the predicted class of each sample."""
        check_is_fitted(self, "learner_")
        learner, classes = self._fitted
        with self._threads():
            predicted = learner.predict(self._validate(X)[0])
        return np.asarray(predicted if classes is None else classes[predicted.numpy()])

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probabilities of `classes_` for each sample, of shape (n, n_classes).

        By default the probability of a class that has not been observed is 0.
        """
        check_is_fitted(self, "learner_")
        with self._threads():
            return self.learner_.predict_proba(self._validate(X)[0]).numpy()

    def snapshot(self) -> Snapshot:
        """Return a copy of the model for predictions, on the host.

        Later training does not change it. Other threads can use it, and it can be pickled.
        """
        check_is_fitted(self, "learner_")
        learner, classes = self._fitted
        with self._threads():
            return learner.snapshot("cpu").for_estimator(classes)

    def export(self, path: str | Path, *, fold: bool = True) -> None:
        """Write the model for predictions, as it is now, to a file, with `classes_`.

        The suffix selects the format: `.safetensors`, `.pt2` or `.onnx`, see
        `dualcba.serving.export_model`.
        """
        export_model(self.snapshot(), path, fold=fold)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of the predictions for X, given the labels y."""
        predicted = self.predict(X)
        with _errors_on_one_line():
            return float(accuracy_score(_to_numpy(y, "y"), predicted, sample_weight=sample_weight))

    def _validate(self, X: ArrayLike, y: Any = "no_validation", *, first: bool = False) -> Any:
        """Return samples in the dtype of the learner, and the labels, unchanged, or None.

        With `first` the data determine the dtype and the number of features.
        """
        dtypes = [np.float32, np.uint8]  # other types are converted to the first of these
        with _errors_on_one_line():
            validated = validate_data(
                self, _to_numpy(X, "X"), _to_numpy(y, "y"), reset=first, dtype=dtypes,
                allow_nd=True,
            )  # fmt: skip
        samples, labels = validated if isinstance(validated, tuple) else (validated, None)
        if not first and self.learner_.dtype == torch.float32:
            samples = samples.astype(np.float32)
        elif not first and samples.dtype != np.uint8:
            wanted = "uint8, as in the first call"
            given = np.asarray(_to_numpy(X, "X")).dtype
            raise ValueError(expected("dtype of X", str(given), wanted))
        if labels is not None:
            with _errors_on_one_line():
                check_classification_targets(labels)
        return samples, labels

    def _check_same_classes(self, classes: ArrayLike) -> None:
        given = _unique_classes(classes)
        if set(given.tolist()) != set(self.classes_.tolist()):
            wanted = f"those of the first call, {self.classes_.tolist()}"
            raise ValueError(expected("classes", given.tolist(), wanted))

    def _start(self, samples: Array, labels: Array, classes: Array | None) -> None:
        """Make a new learner for samples of this shape and dtype; it grows if `classes` is None."""
        if classes is not None:
            if len(classes) < 2:
                raise ValueError(f"there is {len(classes)} class, expected at least 2")
            _check_labels(labels, classes)
        self._announced = classes is not None
        self._outputs = FIRST_OUTPUTS if classes is None else len(classes)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        dtype = torch.uint8 if samples.dtype == np.uint8 else torch.float32
        arguments = self._learner_arguments(dtype, samples.shape[1:])
        self._made_from = (self.network, samples.shape[1:], arguments)
        self._fitted = self._make_learner(classes), classes

    # the learner and its classes (None if it grows), in one tuple so that threads see both change
    _fitted: tuple[Learner, Array | None]
    _announced = True  # whether labels that are not in `classes_` are an error
    _outputs: int | None = None  # initial outputs of the network; None in pickles of old versions

    @property
    def learner_(self) -> Learner:
        """The learner."""
        check_is_fitted(self, "_fitted")
        return self._fitted[0]

    @property
    def classes_(self) -> Array:
        """The class labels."""
        check_is_fitted(self, "_fitted")
        learner, classes = self._fitted
        return as_array(learner.classes_) if classes is None else classes

    @property
    def _grows(self) -> bool:
        """Whether the learner has no `num_classes`."""
        return self._fitted[1] is None

    def _grow_if_needed(self, labels: Array) -> None:
        """If there is a new label after `fit`, replace the learner by a growing one."""
        known = as_list(self.classes_)
        if self._grows or self._announced or set(as_list(labels)) <= set(known):
            return
        state, grown = self.learner_.state_dict(), self._make_learner(None)
        grown.add_classes(known)
        state["meta"]["classes"] = labels_to_json(known)
        grown.load_state_dict(widened(state, grown.parts))
        self._fitted = grown, None

    def _learner_arguments(self, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        fixed: dict[str, Any] = {
            "method": self.method, "buffer": self.buffer, "batch_size": self.batch_size,
            "seed": self.seed_, "dtype": dtype, "boundaries": "inferred",
        }  # fmt: skip
        if self.lr is not None:
            fixed["lr"] = self.lr
        options = learner_options(self.learner_options, {*fixed, "lr"})
        vectors = len(shape) == 1 and dtype == torch.float32 and "transform" not in options
        given = with_recipe({**fixed, **options}, colour=is_colour(shape, dtype))
        usual = {"seen_only": True, "standardise": vectors, **unannounced_options(given["method"])}
        return {**usual, **given}

    def _make_learner(self, classes: Array | None) -> Learner:
        """Make a learner from `_made_from`, which ignores parameters changed since.

        The learner grows if `classes` is None.
        """
        network, shape, arguments = self._made_from
        outputs = self._outputs or (FIRST_OUTPUTS if classes is None else len(classes))
        with default_modes(torch.device("cpu")), first_weights(self.seed_):
            if isinstance(network, str):
                network = make_network(network, shape, outputs)
            else:
                network = copy.deepcopy(network)
        num_classes = None if classes is None else outputs
        return Learner(network, shape, num_classes, **copy.deepcopy(arguments))

    def _observe(self, samples: Array, labels: Array, *, again: bool = False) -> None:
        """Pass the samples to the learner in batches; `again` as in `Learner.observe`."""
        if self._grows:
            indices = labels
        else:
            _check_labels(labels, self.classes_)
            indices = np.searchsorted(self.classes_, labels)
        for batch in even_batches(len(samples), self.learner_.batch_size):
            self.learner_.observe(samples[batch], indices[batch], again=again)

    def _threads(self) -> AbstractContextManager[None]:
        network = self._made_from[0] if hasattr(self, "learner_") else self.network
        return threads_for(small=isinstance(network, str) and network == "mlp")

    @contextmanager
    def _restore_learner_on_error(self) -> Iterator[None]:
        """Restore the learner if the block raises an error."""
        before = self.learner_.state_dict()
        try:
            yield
        except BaseException:
            self.learner_.load_state_dict(before)
            raise

    @contextmanager
    def _restore_on_error(self) -> Iterator[None]:
        """Restore all attributes if the block raises an error."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.update(before)
            for name in self.__dict__.keys() - before.keys():
                del self.__dict__[name]
            raise

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_fitted" in state:
            learner, classes = state.pop("_fitted")
            learner_state = learner.state_dict()
            tensors = {k: v.cpu() for k, v in learner_state["tensors"].items()}
            state["learner_"] = learner_state | {"tensors": tensors}
            state |= {"_grows": classes is None, "classes_": classes}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_recipe" in state:  # the name in pickles of earlier versions
            state["_made_from"] = state.pop("_recipe")
        learner_state = state.pop("learner_", None)
        classes, grows = state.pop("classes_", None), state.pop("_grows", False)
        super().__setstate__(state)
        if learner_state is not None:
            classes = None if grows else classes
            learner = self._make_learner(classes)
            learner.load_state_dict(learner_state)
            self._fitted = learner, classes


def _unique_classes(classes: ArrayLike) -> Array:
    try:
        return np.asarray(unique_labels(_to_numpy(classes, "classes")))
    except Exception as error:  # an object may raise anything
        raise ValueError(f"classes cannot be read as a list of labels: {reason(error)}") from error


def _to_numpy(given: Any, name: str) -> Any:
    """Return a tensor as an array, and anything else unchanged."""
    no_mask(name, given)
    if not isinstance(given, torch.Tensor):
        return given
    return plain_tensor(given, name).cpu().numpy()


@contextmanager
def _errors_on_one_line() -> Iterator[None]:
    """Reduce errors of scikit-learn, and of the objects that it reads, to one line."""
    try:
        yield
    except TypeError as error:
        raise TypeError(reason(error)) from error
    except ValueError as error:
        raise ValueError(reason(error)) from error
    except Exception as error:
        raise ValueError(f"X or y cannot be read as an array: {reason(error)}") from error


def _check_labels(labels: Array, classes: Array) -> None:
    unexpected = np.setdiff1d(labels, classes)
    if len(unexpected):
        wanted = f"only labels in classes, {classes.tolist()}"
        raise ValueError(expected("y", unexpected.tolist(), wanted))
