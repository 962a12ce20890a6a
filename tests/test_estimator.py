"""The scikit-learn face: its own suite of checks, and the learner behind it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dualcba import Learner, load_dataset
from dualcba.estimator import DualCBAClassifier
from dualcba.nets import MLP

CLASSES = ["a", "b", "c", "d"]
SMALL: dict[str, Any] = {"buffer": 20, "random_state": 0}


def stream(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two classes, then two more."""
    rng = np.random.default_rng(seed)
    parts = []
    for pair in (0, 2):
        y = rng.integers(pair, pair + 2, 45)
        x = np.eye(4)[y] + rng.normal(0, 0.1, (45, 4))
        parts.append((x, np.array(CLASSES)[y]))
    return parts


def state(classifier: DualCBAClassifier) -> dict[str, torch.Tensor]:
    return classifier.learner_.state_dict()["tensors"]  # type: ignore[no-any-return]


@parametrize_with_checks([DualCBAClassifier(random_state=0)])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_part_of_the_stream_is_observed_in_batches() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    before = copy.deepcopy(module.state_dict())
    classifier = DualCBAClassifier(module, **SMALL)
    for x, y in stream():
        classifier.partial_fit(x, y, classes=CLASSES)
    learner = Learner(
        copy.deepcopy(module), (4,), 4, buffer=20, batch_size=10, seed=classifier.seed_,
        dtype=torch.float32, boundaries="inferred", seen_only=True,
    )  # fmt: skip
    for x, y in stream():
        labels = np.array([CLASSES.index(c) for c in y])
        for k in range(0, 45, 10):
            learner.observe(x[k : k + 10].astype(np.float32), labels[k : k + 10])
    mine, wanted = state(classifier), learner.state_dict()["tensors"]
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(mine[k], v) for k, v in wanted.items())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_it_goes_on_from_a_pickle() -> None:
    first, second = stream()
    straight = DualCBAClassifier(**SMALL).partial_fit(*first, classes=CLASSES)
    again = pickle.loads(pickle.dumps(straight))
    assert np.array_equal(again.predict_proba(first[0]), straight.predict_proba(first[0]))
    for one in (straight, again):
        one.partial_fit(*second)
    assert all(torch.equal(state(again)[k], v) for k, v in state(straight).items())
    assert straight.learner_.task == again.learner_.task == 1


def test_the_stream_goes_on_after_a_fit() -> None:
    (x, y), second = stream()
    classifier = DualCBAClassifier(**SMALL).fit(np.eye(4).repeat(9, 0), np.repeat(CLASSES, 9))
    classifier.partial_fit(x, y).partial_fit(*second)
    assert classifier.learner_.step == 10 * 4 + 2 * 5
    assert classifier.fit(x, y).classes_.tolist() == ["a", "b"]


def test_what_has_not_come_is_no_answer() -> None:
    x, y = stream()[0]
    classifier = DualCBAClassifier(**SMALL).partial_fit(x, y, classes=CLASSES)
    shares = classifier.predict_proba(x)
    assert (shares[:, 2:] == 0).all()
    assert np.allclose(shares.sum(1), 1)
    assert set(classifier.predict(x)) <= {"a", "b"}


def test_images_stay_bytes_and_options_reach_the_learner() -> None:
    data = load_dataset("digits")
    x, y = data.train_x.numpy(), data.train_y.numpy()
    given = {"ibn": False, "adaptor_options": {"width": 16}}
    classifier = DualCBAClassifier(MLP((1, 8, 8), 10), learner_options=given, **SMALL)
    classifier.partial_fit(x[:50], y[:50], classes=range(10))
    assert classifier.learner_.dtype == classifier.learner_.memory.x.dtype == torch.uint8
    assert not classifier.learner_.ibn
    assert classifier.predict(x[:5]).shape == (5,)


def test_digits_by_cross_validation() -> None:
    data = load_dataset("digits")
    x, y = data.train_x.flatten(1).numpy() / 16, data.train_y.numpy()
    accuracies = cross_val_score(DualCBAClassifier(epochs=2, **SMALL), x, y, cv=3)
    assert min(accuracies) > 0.9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c, x, y: c.partial_fit(x, y), "classes is None, expected all labels to come"),
        (lambda c, x, y: c.partial_fit(x, y, ["a"]), "there is 1 class, expected at least 2"),
        (
            lambda c, x, y: c.partial_fit(x, y, ["a", "x"]),
            r"y is \['b'\], expected some of classes",
        ),
        (lambda c, x, y: c.set_params(epochs=0).fit(x, y), "epochs is 0, expected a whole number"),
        (
            lambda c, x, y: c.partial_fit(x, y, CLASSES).partial_fit(x, y, ["a", "b"]),
            r"classes is \['a', 'b'\], expected those of the first call",
        ),
    ],
)
def test_one_line_says_what_is_wrong(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call(DualCBAClassifier(**SMALL), *stream()[0])
    assert "\n" not in str(caught.value)


def test_a_first_part_that_does_not_fit_leaves_nothing_behind() -> None:
    x, y = stream()[0]
    classifier = DualCBAClassifier(**SMALL)
    for wrong in ({"classes": ["a", "x"]}, {"classes": None}):
        with pytest.raises(ValueError, match="expected"):
            classifier.partial_fit(x, y, **wrong)
        with pytest.raises(NotFittedError):
            classifier.predict(x)
    assert set(classifier.partial_fit(x, y, classes=CLASSES).predict(x)) == {"a", "b"}
