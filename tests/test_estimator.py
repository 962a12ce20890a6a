"""The scikit-learn classifier: scikit-learn's own checks, and the learner that it uses."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dualcba import Learner, Transform, estimator, load_dataset
from dualcba.estimator import DualCBAClassifier
from dualcba.methods.er import ER
from dualcba.nets import MLP
from dualcba.training import growth
from dualcba.training.loss_monitor import LossMonitor
from dualcba.training.step import TrainingStep

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
        copy.deepcopy(module), (4,), 4, method="er-balanced-cba", buffer=20, batch_size=10,
        seed=classifier.seed_, dtype=torch.float32, boundaries="inferred", seen_only=True,
        standardise=True, forward="concat",
    )  # fmt: skip
    for x, y in stream():
        labels = np.array([CLASSES.index(c) for c in y])
        for k in range(0, 45, 9):  # five batches of even size
            learner.observe(x[k : k + 9].astype(np.float32), labels[k : k + 9])
    mine, wanted = state(classifier), learner.state_dict()["tensors"]
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(mine[k], v) for k, v in wanted.items())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_tiny_batches_do_not_wreck_the_answers() -> None:
    data = load_dataset("digits")
    x, y = data.train_x.flatten(1).numpy() / np.float32(255), data.train_y.numpy()
    test_x, test_y = data.test_x.flatten(1).numpy() / np.float32(255), data.test_y.numpy()
    lost = []
    for seed in range(3):
        classifier = DualCBAClassifier(method="er", buffer=200, random_state=seed)
        for k in range(0, 10, 2):
            rows = np.flatnonzero((y == k) | (y == k + 1))[:200]
            classifier.partial_fit(x[rows], y[rows], classes=np.arange(10))
        before, late = classifier.score(test_x, test_y), np.flatnonzero(y == 8)
        for n in (2, 12, 2, 12, 2):
            classifier.partial_fit(x[late[:n]], y[late[:n]])
            lost.append(before - classifier.score(test_x, test_y))
            late = late[n:]
    assert max(lost) < 0.25  # up to 0.68 with running statistics and a rest of two


def test_the_number_of_threads_changes_nothing() -> None:
    data, before = load_dataset("digits"), torch.get_num_threads()
    x, y, found = data.train_x[:400].numpy(), data.train_y[:400].numpy(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            classifier = DualCBAClassifier(random_state=0).partial_fit(x, y, classes=range(10))
            found.append((state(classifier), classifier.predict_proba(data.test_x.numpy())))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for tensors, probabilities in found[1:]:
        assert all(torch.equal(tensors[k], v) for k, v in found[0][0].items())
        assert np.array_equal(probabilities, found[0][1])


def test_training_continues_from_a_pickle() -> None:
    first, second = stream()
    straight = DualCBAClassifier(**SMALL).partial_fit(*first, classes=CLASSES)
    again = pickle.loads(pickle.dumps(straight))
    assert np.array_equal(again.predict_proba(first[0]), straight.predict_proba(first[0]))
    for one in (straight, again):
        one.partial_fit(*second)
    assert all(torch.equal(state(again)[k], v) for k, v in state(straight).items())
    assert straight.learner_.task == again.learner_.task == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"buffer": 30},
        {"method": "er"},
        {"network": nn.Linear(4, 4)},
        {"batch_size": 0},
        {"batch_size": 45},
        {"learner_options": {"width": 8}},
    ],
)
def test_changed_parameters_take_effect_at_the_next_fit(changed: dict[str, Any]) -> None:
    first, second = stream()
    straight = DualCBAClassifier(**SMALL).partial_fit(*first, classes=CLASSES).partial_fit(*second)
    classifier = DualCBAClassifier(**SMALL).partial_fit(*first, classes=CLASSES)
    classifier.set_params(**changed)
    for one in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier), classifier):
        one.partial_fit(*second)
        assert all(torch.equal(state(one)[k], v) for k, v in state(straight).items())


def test_a_method_object_is_copied() -> None:
    x, y = stream()[0]
    method = ER()
    classifier = DualCBAClassifier(method=method, **SMALL).fit(x, y)
    assert not hasattr(method, "context")
    for one in (pickle.loads(pickle.dumps(classifier)), clone(classifier).fit(x, y)):
        assert np.array_equal(one.predict_proba(x), classifier.predict_proba(x))
    classifier.fit(x, y)


def test_after_fit_further_labels_are_new_classes() -> None:
    (x, y), (later_x, later_y) = stream()
    classifier = DualCBAClassifier(**SMALL).fit(x, y)
    before = classifier.predict_proba(x)
    weights = {k: v.clone() for k, v in state(classifier).items()}
    with pytest.raises(FloatingPointError, match="times the largest"):
        classifier.partial_fit(later_x * 1e9, later_y)
    assert classifier.classes_.tolist() == ["a", "b"]
    assert all(torch.equal(weights[k], v) for k, v in state(classifier).items())
    assert np.array_equal(classifier.predict_proba(x), before)
    classifier.partial_fit(later_x, later_y)
    assert classifier.classes_.tolist() == ["a", "b", *dict.fromkeys(later_y.tolist())]
    again = pickle.loads(pickle.dumps(classifier))
    for one in (classifier, again):
        one.partial_fit(later_x[:5], np.repeat("e", 5))
        assert one.classes_.tolist()[-1] == "e"
        assert one.predict_proba(x).shape == (len(x), 5)
    assert all(torch.equal(state(again)[k], v) for k, v in state(classifier).items())


@pytest.mark.parametrize("method", ["derpp-dual-cba", "lucir", "icarl", "clser-cba", "er+mkd"])
def test_any_method_goes_on_after_fit(method: str) -> None:
    (x, y), (later_x, later_y) = stream()
    classifier = DualCBAClassifier(method=method, epochs=2, **SMALL).fit(x, y)
    classifier.partial_fit(later_x, later_y)
    assert set(classifier.predict(np.concatenate([x, later_x]))) <= set(CLASSES)
    assert classifier.score(later_x, later_y) > 0.5


def test_labels_that_were_announced_stay_the_only_ones() -> None:
    (x, y), later = stream()
    classifier = DualCBAClassifier(**SMALL).partial_fit(x, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="only labels in classes"):
        classifier.partial_fit(*later)


def test_float_vectors_are_standardised_unless_told_otherwise() -> None:
    x, y = stream()[0]
    mixed = x * [1, 1e6, 1e-6, 1]
    plain = DualCBAClassifier(**SMALL).fit(x, y)
    scaled = DualCBAClassifier(**SMALL).fit(mixed, y)
    assert np.allclose(plain.predict_proba(x), scaled.predict_proba(mixed), atol=1e-2)
    for given, samples in (
        ({"standardise": False}, x),
        ({"transform": Transform([0.0], [2.0])}, x),
        ({}, (x * 20).clip(0, 255).astype(np.uint8)),
        ({}, x.reshape(-1, 2, 2)),
    ):
        classifier = DualCBAClassifier(learner_options=given, **SMALL).fit(samples, y)
        assert "inputs.mean" not in state(classifier)


def test_a_recipe_and_the_rate_of_its_optimiser() -> None:
    x, y = stream()[0]
    given = {k: v for k, v in SMALL.items() if k != "lr"}
    short = DualCBAClassifier(**given, method="best").fit(x, y)
    options = {"protocol": "p10", "method_options": {"share": 0.5}, "readout": "debiased"}
    options |= {"ibn_augment": False, "augmentation": "partial"}
    written = DualCBAClassifier(**given, method="er+mkd", learner_options=options)
    same = short.predict_proba(x), written.fit(x, y).predict_proba(x)
    assert np.array_equal(*same)
    other = DualCBAClassifier(**given, method="best", lr=0.0005).fit(x, y)
    assert np.array_equal(same[0], other.predict_proba(x))
    again = pickle.loads(pickle.dumps(short))
    assert np.array_equal(again.predict_proba(x), same[0])
    plain = DualCBAClassifier(**given, method="best", learner_options={"readout": "head"})
    assert not np.array_equal(plain.fit(x, y).predict_proba(x), same[0])


def test_a_pickle_of_an_earlier_version_is_read() -> None:
    x, y = stream()[0]
    classifier, again = DualCBAClassifier(**SMALL).fit(x, y), DualCBAClassifier()
    state = classifier.__getstate__()
    made_from = state.pop("_made_from")
    again.__setstate__({**state, "_recipe": made_from})
    assert np.array_equal(again.predict_proba(x), classifier.predict_proba(x))


@pytest.mark.gpu
def test_a_pickle_from_a_gpu_can_be_read_anywhere() -> None:
    x, y = stream()[0]
    options = {"device": "cuda"}
    classifier = DualCBAClassifier(learner_options=options, **SMALL).fit(x, y)
    assert classifier.learner_.device.type == "cuda"
    tensors = classifier.__getstate__()["learner_"]["tensors"]
    assert all(tensor.device.type == "cpu" for tensor in tensors.values())
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict_proba(x), classifier.predict_proba(x))


@pytest.mark.parametrize("method", ["icarl", "lucir"])
def test_exemplars_are_chosen_among_samples_not_among_epochs(method: str) -> None:
    x, y = stream()[0]
    memory = DualCBAClassifier(method=method, epochs=3, **SMALL).fit(x, y).learner_.memory
    assert len(np.unique(memory.x[: memory.filled], axis=0)) == memory.filled == 20


def test_the_stream_goes_on_after_a_fit() -> None:
    (x, y), second = stream()
    classifier = DualCBAClassifier(**SMALL).fit(np.eye(4).repeat(9, 0), np.repeat(CLASSES, 9))
    classifier.partial_fit(x, y).partial_fit(*second)
    assert classifier.learner_.step == 10 * 4 + 2 * 5
    assert classifier.fit(x, y).classes_.tolist() == ["a", "b"]


def test_unobserved_classes_are_not_predicted() -> None:
    x, y = stream()[0]
    classifier = DualCBAClassifier(**SMALL).partial_fit(x, y, classes=CLASSES)
    shares = classifier.predict_proba(x)
    assert (shares[:, 2:] == 0).all()
    assert np.allclose(shares.sum(1), 1)
    assert set(classifier.predict(x)) <= {"a", "b"}


@pytest.mark.parametrize("names", [["d", "c", "b", "a"], [700, 3, -1, 12]])
def test_classes_arrive_unannounced(names: list[Any]) -> None:
    classifier = DualCBAClassifier(**SMALL)
    for k in range(4):  # one class after the other
        classifier.partial_fit(np.eye(4)[[k] * 20], np.repeat(names[k : k + 1], 20))
        assert classifier.classes_.tolist() == names[: k + 1]
    assert classifier.predict_proba(np.eye(4)).shape == (4, 4)
    assert set(classifier.predict(np.eye(4)).tolist()) <= set(names)
    assert classifier.classes_.dtype.kind == np.array(names).dtype.kind


def test_a_growing_classifier_continues_from_a_pickle() -> None:
    x, y = np.eye(40).repeat(8, 0), np.repeat([f"class {k}" for k in range(40)], 8)
    one = DualCBAClassifier(**SMALL).partial_fit(x[:160], y[:160])
    other = pickle.loads(pickle.dumps(one))
    for classifier in (one, other):
        classifier.partial_fit(x[160:], y[160:])
    assert one.classes_.tolist() == other.classes_.tolist() == list(dict.fromkeys(y))
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))


class Asking:
    """Asks a classifier, as another thread may, after each step of its learner."""

    def __init__(self, classifier: DualCBAClassifier, x: Any) -> None:
        self.classifier, self.x = classifier, x
        self.labels: set[Any] = set()

    def before_step(self, x: torch.Tensor, y: torch.Tensor, *, again: bool) -> None:
        pass

    def after_step(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.labels |= set(self.classifier.predict(self.x).tolist())
        shares, classes = self.classifier.predict_proba(self.x), self.classifier.classes_
        assert shares.shape == (len(self.x), len(classes))
        assert self.classifier.snapshot().classes_ == classes.tolist()


def test_predictions_within_a_call_are_labels_that_were_given() -> None:
    x = np.eye(4).repeat(20, 0)
    classifier = DualCBAClassifier(**SMALL).partial_fit(x[:40], np.repeat(["cat", "dog"], 20))
    asking = Asking(classifier, x[::20])
    classifier.learner_.attach(asking)
    classifier.partial_fit(x[40:], np.repeat(["elephant", "ant"], 20))
    assert "elephant" in asking.labels
    assert asking.labels <= {"cat", "dog", "elephant", "ant"}


def test_predictions_are_labels_while_a_learner_that_grows_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.eye(4).repeat(20, 0)
    classifier = DualCBAClassifier(**SMALL, epochs=1).fit(x[:40], np.repeat(["cat", "dog"], 20))
    asking = Asking(classifier, x[:40])
    expected = classifier.predict(x[:40]).tolist()

    def widened(*given: Any) -> Any:
        asking.ask()
        return growth.widened(*given)

    make = DualCBAClassifier._make_learner

    def made(self: DualCBAClassifier, *given: Any) -> Any:
        asking.ask()
        return make(self, *given)

    monkeypatch.setattr(DualCBAClassifier, "_make_learner", made)
    monkeypatch.setattr(estimator, "widened", widened)
    classifier.partial_fit(x[40:60], ["elephant"] * 20)
    assert asking.labels == set(expected)
    assert classifier.classes_.tolist() == ["cat", "dog", "elephant"]


def test_a_limit_of_classes_is_refused_and_undone() -> None:
    options = {"max_classes": 2}
    classifier = DualCBAClassifier(**SMALL, learner_options=options)
    classifier.partial_fit(np.eye(4)[:2], ["a", "b"])
    before = classifier.predict_proba(np.eye(4))
    wanted = "number of classes is 3, expected at most max_classes 2: the label 'c' is new"
    with pytest.raises(ValueError, match=wanted):
        classifier.partial_fit(np.eye(4).repeat(9, 0)[:27], ["a"] * 18 + ["c"] * 9)
    assert classifier.classes_.tolist() == ["a", "b"]
    assert np.array_equal(classifier.predict_proba(np.eye(4)), before)


def test_images_stay_bytes_and_options_reach_the_learner() -> None:
    data = load_dataset("digits")
    x, y = data.train_x.numpy(), data.train_y.numpy()
    given = {"ibn": False, "width": 16}
    classifier = DualCBAClassifier(MLP((1, 8, 8), 10), learner_options=given, **SMALL)
    classifier.partial_fit(x[:50], y[:50], classes=range(10))
    assert classifier.learner_.dtype == classifier.learner_.memory.x.dtype == torch.uint8
    assert classifier.learner_.statistics == "bn"
    assert classifier.predict(x[:5]).shape == (5,)


def test_digits_by_cross_validation() -> None:
    data = load_dataset("digits")
    x, y = data.train_x.flatten(1).numpy() / 16, data.train_y.numpy()
    accuracies = cross_val_score(DualCBAClassifier(epochs=2, **SMALL), x, y, cv=3)
    assert min(accuracies) > 0.9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c, x, y: c.partial_fit(x, y, ["a"]), "there is 1 class, expected at least 2"),
        (
            lambda c, x, y: c.partial_fit(x, y, ["a", "x"]),
            r"y is \['b'\], expected only labels in classes",
        ),
        (lambda c, x, y: c.set_params(epochs=0).fit(x, y), "epochs is 0, expected a whole number"),
        (
            lambda c, x, y: c.partial_fit(x, y, CLASSES).partial_fit(x, y, ["a", "b"]),
            r"classes is \['a', 'b'\], expected those of the first call",
        ),
        (lambda c, x, y: c.partial_fit(np.ma.masked_less(x, 0.5), y), "X has masked values"),
        (lambda c, x, y: c.partial_fit(x, np.ma.masked_equal(y, "a")), "y has masked values"),
        (lambda c, x, y: c.partial_fit(x, y, 4), "classes cannot be read as a list of labels"),
        (
            lambda c, x, y: c.set_params(method="bic").fit(x, y),
            "epochs is 10, expected 1: BiC only makes sense in a single pass",
        ),
        (
            lambda c, x, y: c.partial_fit(x.astype(np.uint8), y, CLASSES).predict(x),
            "dtype of X is 'float64', expected uint8, as in the first call",
        ),
        (
            lambda c, x, y: c.set_params(learner_options="ibn").fit(x, y),
            "learner_options is 'ibn', expected a mapping of names to values",
        ),
        (
            lambda c, x, y: c.set_params(learner_options={"inb": True}).fit(x, y),
            "unknown learner option 'inb', did you mean 'ibn'",
        ),
        *(
            (
                lambda c, x, y, name=name: c.set_params(learner_options={name: 10}).fit(x, y),
                f"a name in learner_options is '{name}', expected an option that the classifier",
            )
            for name in ("boundaries", "dtype", "seed", "method", "batch_size", "num_classes")
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
    for wrong in ({"classes": ["a", "x"]}, {"classes": ["a"]}):
        with pytest.raises(ValueError, match="expected"):
            classifier.partial_fit(x, y, **wrong)
        with pytest.raises(NotFittedError):
            classifier.predict(x)
    assert set(classifier.partial_fit(x, y, classes=CLASSES).predict(x)) == {"a", "b"}


def test_a_first_part_that_cannot_be_learnt_leaves_nothing_behind() -> None:
    x, y = stream()[0]
    classifier = DualCBAClassifier(lr=1e30, **SMALL)
    fresh = dict(vars(classifier))
    with pytest.raises(FloatingPointError):
        classifier.partial_fit(x, y, classes=CLASSES)
    assert vars(classifier) == fresh
    classifier.set_params(lr=0.03).partial_fit(x, y, classes=CLASSES)
    assert set(classifier.predict(x)) == {"a", "b"}


@pytest.mark.parametrize("wrong", [{"buffer": 0}, {"network": "x"}, {"lr": 1e30}])
def test_a_fit_that_fails_keeps_what_was_learnt(wrong: dict[str, Any]) -> None:
    (x, y), (other, labels) = stream()
    classifier = DualCBAClassifier(**SMALL).fit(x, y)
    before = classifier.predict_proba(x)
    with pytest.raises((ValueError, FloatingPointError)):
        classifier.set_params(**wrong).fit(np.hstack([other, other]), labels)
    assert classifier.classes_.tolist() == ["a", "b"]
    assert np.array_equal(classifier.predict_proba(x), before)


def test_a_part_that_fails_in_the_middle_leaves_the_learner_as_before() -> None:
    (x, y), (other, labels) = stream()
    classifier = DualCBAClassifier(**SMALL).partial_fit(x, y, classes=CLASSES)
    before = classifier.learner_.state_dict()
    broken = other.copy()
    broken[-1, 0] = 1e20  # in the last of several batches
    with pytest.raises(FloatingPointError, match="x has a value of 1e"):
        classifier.partial_fit(broken, labels)
    after = classifier.learner_.state_dict()
    assert after["meta"] == before["meta"]
    assert all(torch.equal(v, after["tensors"][k]) for k, v in before["tensors"].items())
    classifier.partial_fit(other, labels)


def test_a_fit_ends_with_a_look_at_refused_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossMonitor, "due", lambda *_: False)  # as between two checks on a GPU
    monkeypatch.setattr(TrainingStep, "__post_init__", TrainingStep.stay_on_device, raising=False)
    with pytest.raises(FloatingPointError):
        DualCBAClassifier(lr=1e30, epochs=1, **SMALL).fit(*stream()[0])


def test_read_only_arrays_give_no_warning() -> None:
    x, y = stream()[0]
    x = x.astype(np.float32)
    x.setflags(write=False)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            DualCBAClassifier(**SMALL).partial_fit(x, y, classes=CLASSES).predict(x)
    finally:
        torch.set_warn_always(always)


@pytest.mark.parametrize("readout", ["debiased", "lda", "both", "ncm"])
def test_a_new_label_after_fit_and_predict(readout: str) -> None:
    (x, y), (more, new) = stream()[:2]
    classifier = DualCBAClassifier(**SMALL, learner_options={"readout": readout}).fit(x, y)
    classifier.predict(x)  # keeps features of the memory, or logits
    classifier.partial_fit(more, new)
    assert set(classifier.classes_) == {*y, *new}
    assert set(classifier.predict(more)) <= set(classifier.classes_)
