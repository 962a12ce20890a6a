"""Samples and labels of unusual kinds: taken as the numbers they hold, or refused with one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from odd_values import REFUSED, TAKEN
from torch import nn

from dualcba import Learner, from_arrays
from dualcba.data import from_torch
from dualcba.estimator import DualCBAClassifier

X = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 4


def learner(boundaries: Any = "given") -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    made = Learner(
        net, (5,), 4, dtype=torch.float32, buffer=8, batch_size=4, device="cpu",
        boundaries=boundaries,
    )  # fmt: skip
    if boundaries == "given":
        made.new_task([0, 1, 2, 3])
    return made


def fitted() -> DualCBAClassifier:
    made = DualCBAClassifier(random_state=0)
    return made.partial_fit(X.numpy(), Y.numpy(), classes=[0, 1, 2, 3])


SAMPLES: dict[str, Callable[[Any], Any]] = {
    "observe": lambda x: learner().observe(x, Y),
    "predict": lambda x: learner().predict(x),
    "predict_proba": lambda x: learner().predict_proba(x),
    "from_arrays": lambda x: from_arrays(x, Y, X, Y),
    "from_arrays test": lambda x: from_arrays(X, Y, x, Y),
    "fit": lambda x: DualCBAClassifier(epochs=1, random_state=0).fit(x, Y),
    "partial_fit": lambda x: fitted().partial_fit(x, Y),
    "classifier": lambda x: fitted().predict(x),
}
LABELS: dict[str, Callable[[Any], Any]] = {
    "observe": lambda y: learner().observe(X, y),
    "new_task": lambda y: learner().new_task(y),
    "from_arrays": lambda y: from_arrays(X, y, X, Y),
    "fit": lambda y: DualCBAClassifier(epochs=1, random_state=0).fit(X, y),
    "partial_fit": lambda y: fitted().partial_fit(X, y),
    "score": lambda y: fitted().score(X, y),
    "classes": lambda y: DualCBAClassifier(random_state=0).partial_fit(X, Y, classes=y),
}


@pytest.mark.filterwarnings("ignore")  # of torch and scikit-learn, on what is refused then
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_numbers_is_refused(kind: str) -> None:
    for given, calls in ((X, SAMPLES), (Y, LABELS)):
        for name, call in calls.items():
            if (kind, name) == ("none", "classes"):  # classes that nobody announces
                continue
            with pytest.raises((ValueError, TypeError)) as error:
                call(REFUSED[kind](given.clone()))
            assert str(error.value), name
            assert "\n" not in str(error.value), name


@pytest.mark.parametrize("kind", TAKEN)
def test_what_holds_numbers_is_taken(kind: str, differ: Any) -> None:
    for name in ("predict", "classifier"):
        assert SAMPLES[name](TAKEN[kind](X.clone())).tolist() == SAMPLES[name](X).tolist()
    assert fitted().score(X, TAKEN[kind](Y.clone())) == fitted().score(X, Y)
    for boundaries in ("given", "inferred"):
        one, two = learner(boundaries), learner(boundaries)
        one.observe(X, Y)
        two.observe(TAKEN[kind](X.clone()), TAKEN[kind](Y.clone()))
        assert not differ(one.state_dict(), two.state_dict())
    learner().new_task(TAKEN[kind](Y.clone()[:2]))
    fitted().partial_fit(TAKEN[kind](X.clone()), TAKEN[kind](Y.clone()))


@pytest.mark.parametrize("kind", ["meta", "sparse", "quantised", "complex", "bits"])
def test_items_of_a_torch_dataset(kind: str) -> None:
    bad = REFUSED[kind](X.clone())
    with pytest.raises(ValueError, match="train sample 0"):
        from_torch([(bad, 0), (bad, 1)], show=False)
    label = REFUSED[kind](torch.tensor([1]))
    with pytest.raises(ValueError, match="train sample 0"):
        from_torch([(X[0], label)] * 4, show=False)


def test_long_doubles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype of train x is '.*', expected numbers"):
        from_arrays(X.numpy().astype(np.longdouble), Y, X, Y)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_classes": 0}, "num_classes is 0, expected a whole number of at least 1"),
        ({"num_classes": "x"}, "num_classes is 'x', expected a whole number of at least 1"),
        ({"mean": [float("nan")], "std": [1.0]}, "mean is [nan], expected finite numbers"),
        ({"mean": [0.0], "std": ["x"]}, "std is ['x'], expected finite numbers"),
        ({"mean": 0.5, "std": 0.5}, "mean is 0.5, expected 1 or 5 numbers, one per channel"),
    ],
)
def test_other_arguments_of_from_arrays_are_checked(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        from_arrays(X, Y, X, Y, **given)


def test_mean_and_std_may_be_arrays_or_tensors() -> None:
    for values in (np.ones(5), torch.ones(5), [1] * 5):
        from_arrays(X, Y, X, Y, mean=values, std=values)
