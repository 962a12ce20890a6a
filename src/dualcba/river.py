"""A river classifier around `Learner`: `learn_one`, `predict_one`, `learn_many` and so on.

It needs the extra `river`; `learn_many`, `predict_many` and `predict_proba_many` also need pandas.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from river import base

from dualcba.engine.threads import threads_for
from dualcba.errors import expected
from dualcba.learner import Learner
from dualcba.nets import make_network
from dualcba.options import with_recipe
from dualcba.randomness import first_weights
from dualcba.tasks.labels import check_saved_label, python_object, read_labels
from dualcba.training.growth import widened
from dualcba.training.learner_state import split_estimate, with_estimate
from dualcba.training.precision import default_modes
from dualcba.training.unannounced import FIRST_OUTPUTS, learner_options, unannounced_options

if TYPE_CHECKING:
    import pandas as pd

Features = Mapping[Hashable, Any]

LARGEST = float(np.finfo(np.float32).max)


class RiverClassifier(base.MiniBatchClassifier):  # type: ignore[misc]
    """A classifier for streams in which new classes and new features arrive over time.

    Samples are dicts of numbers. A feature that has not occurred before becomes a new input of the
    network; the number of inputs is doubled as needed, and what was learnt is kept. A feature that
    is missing, None or NaN counts as 0; predictions ignore features that were never learnt. Inputs
    are standardised online. Classes need not be announced.

    By default `learn_one` trains on each sample at once, together with ten samples of the memory.
    With a larger `batch_size` it collects samples, and trains when it has that many, or at once if
    the label is new: faster, but fewer steps. `learn_many` has the same result as a loop over
    `learn_one`. If a step is refused, for an outlier for example, `learn_one` raises, and the
    samples of the step are discarded.

    Parameters
    ----------
    method, buffer, lr
        As for `Learner`. The default of `lr` depends on the optimiser; for SGD it is 0.03.
    batch_size
        New samples per step. A step also has as many samples of the memory, but at least 10; a
        protocol or recipe can set another number.
    learner_options
        Other keyword arguments of `Learner`, such as {"optimizer": "adam"}.
    seed
        The seed; if None, a random one is drawn.

    >>> from river import datasets, evaluate, metrics
    >>> model = RiverClassifier(seed=0)
    >>> evaluate.progressive_val_score(datasets.Phishing().take(100), model, metrics.Accuracy())
    Accuracy: 79...%
    """

    def __init__(
        self,
        method: str = "er-balanced-cba",
        buffer: int = 200,
        batch_size: int = 1,
        lr: float | None = None,
        learner_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.method = method
        self.buffer = buffer
        self.batch_size = batch_size
        self.lr = lr
        self.learner_options = learner_options
        self.seed = seed
        self._learner: Learner | None = None
        self._readout: str | None = None  # of the first learner; later ones keep it
        self._inputs: dict[Hashable, int] = {}  # the position of each feature
        self._waiting: list[tuple[dict[Hashable, float], Hashable]] = []
        self._seed = seed

    @property
    def _multiclass(self) -> bool:
        return True

    @property
    def learner(self) -> Learner | None:
        """The `Learner`; None before the first sample, and replaced when inputs are added."""
        return self._learner

    # ------------------------------------------------------------------ learning

    def learn_one(self, x: Features, y: Hashable) -> None:
        """Train on a sample, or collect it until there are `batch_size` samples."""
        label = python_object(y)
        check_saved_label(label, "y")
        self._waiting.append((_numbers(x), label))
        known = [] if self._learner is None else self._learner.classes_
        if len(self._waiting) >= self.batch_size or self._waiting[-1][1] not in known:
            self._learn()

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Train on the rows of a table, as `learn_one` does row by row.

        All rows and labels are checked first: if one is invalid, none is learnt.
        """
        rows, labels = X.to_dict("records"), read_labels(y, len(X), "y")
        for k, (x, label) in enumerate(zip(rows, labels, strict=True)):
            _numbers(x)
            check_saved_label(label, f"y[{k}]")
        for x, label in zip(rows, labels, strict=True):
            self.learn_one(x, label)

    def _learn(self) -> None:
        """Train on the collected samples."""
        waiting, self._waiting = self._waiting, []
        inputs = dict(self._inputs)
        for x, _ in waiting:
            for name in sorted(x.keys() - inputs.keys(), key=repr):  # whatever their order in x
                inputs[name] = len(inputs)
        with threads_for(small=True):
            learner, labels = self._learner_with(len(inputs)), [y for _, y in waiting]
            self._inputs = inputs
            learner.observe(self._vectors(x for x, _ in waiting), labels)  # type: ignore[arg-type]

    def _learner_with(self, inputs: int) -> Learner:
        """Return a learner with at least this number of inputs."""
        before, needed = self._learner, max(1, inputs)
        if before is None:
            self._learner = self._make(needed)
        elif before.input_shape[0] < needed:
            learner = self._make(max(needed, 2 * before.input_shape[0]))
            learner.add_classes(before.classes_)
            learner.load_state_dict(widened(before.state_dict(), learner.parts))
            self._learner = learner
        assert self._learner is not None
        return self._learner

    def _make(self, inputs: int) -> Learner:
        if self._seed is None:
            self._seed = int(np.random.default_rng().integers(2**31))
        with default_modes(torch.device("cpu")), first_weights(self._seed):
            network = make_network("mlp", (inputs,), FIRST_OUTPUTS)
        fixed: dict[str, Any] = {
            "method": self.method, "buffer": self.buffer, "batch_size": self.batch_size,
            "seed": self._seed, "dtype": torch.float32,
        }  # fmt: skip
        options = learner_options(self.learner_options, {*fixed, "lr", "boundaries"})
        if self.lr is not None:
            fixed["lr"] = self.lr
        given = with_recipe({**fixed, **options}, colour=False)
        own = {"standardise": True, **unannounced_options(given["method"])}
        if given.get("protocol", "paper") == "paper":  # other protocols set memory_batch
            own["memory_batch"] = max(10, self.batch_size)
        options = {**own, **given}
        if "readout" not in given:
            options["readout"] = self._readout or options["readout"]
        self._readout = options["readout"]
        return Learner(network, (inputs,), **options)

    # ------------------------------------------------------------------ prediction

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """Return the probability of each class so far; empty before the first sample."""
        if self._learner is None or not self._learner.num_classes:
            return {}
        found = self._probabilities(self._vectors([_numbers(x)]))[0]
        return dict(zip(self._learner.classes_, found.tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the probability of each class so far (column) for each row."""
        import pandas as pd

        if self._learner is None or not self._learner.num_classes:
            return pd.DataFrame(index=X.index)
        rows = self._vectors(map(_numbers, X.to_dict("records")))
        found = self._probabilities(rows) if len(X) else np.empty((0, self._learner.num_classes))
        return pd.DataFrame(found, index=X.index, columns=self._learner.classes_)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Return the most probable class of each row; None before the first sample."""
        import pandas as pd

        found = self.predict_proba_many(X)
        if found.empty:
            return pd.Series([None] * len(X), index=X.index, dtype=object)
        return found.idxmax(axis="columns")

    def _probabilities(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        assert self._learner is not None
        with threads_for(small=True):
            found = self._learner.predict_proba(vectors).double().numpy()
        return np.asarray(found / found.sum(1, keepdims=True))

    def _vectors(self, samples: Iterable[Mapping[Hashable, float]]) -> NDArray[np.float32]:
        """Return samples as vectors, with 0 for missing features."""
        assert self._learner is not None
        width = self._learner.input_shape[0]
        rows = list(samples)
        found = np.zeros((len(rows), width), np.float32)
        for row, x in zip(found, rows, strict=True):
            for name, value in x.items():
                if (k := self._inputs.get(name)) is not None:
                    row[k] = value
        return found

    # ------------------------------------------------------------------ pickle

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._learner is not None:
            saved = with_estimate(self._learner.state_dict())
            tensors = {name: t.cpu().numpy() for name, t in saved["tensors"].items()}
            inputs = self._learner.input_shape[0]
            state["_learner"] = inputs, {"tensors": tensors, "meta": saved["meta"]}
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({"_readout": "head", **state})  # as in pickles of earlier versions
        if state["_learner"] is not None:
            inputs, saved = state["_learner"]
            tensors = {name: torch.from_numpy(t.copy()) for name, t in saved["tensors"].items()}
            self._learner = self._make(inputs)
            state = split_estimate({"tensors": tensors, "meta": saved["meta"]})
            self._learner.load_state_dict(state)


def _numbers(x: Features) -> dict[Hashable, float]:
    """Return the features of a sample as numbers, without those that are missing.

    >>> _numbers({"a": True, "b": None, "c": float("nan")})
    {'a': 1.0}
    """
    found = {}
    for name, given in x.items():
        try:
            value = math.nan if given is None else float(given)
        except (TypeError, ValueError, OverflowError):
            wanted = "a number, or None if it is missing; river's OneHotEncoder encodes words"
            raise ValueError(expected(f"feature {name!r}", given, wanted)) from None
        if math.isinf(value) or abs(value) > LARGEST:
            raise ValueError(expected(f"feature {name!r}", given, "a finite number in float32"))
        if not math.isnan(value):
            found[name] = value
    return found
