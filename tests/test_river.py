"""The river classifier: river's own checks, features and classes that come and go."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("river")
from river import checks, compose, datasets, metrics, preprocessing

from dualcba import Learner
from dualcba.river import RiverClassifier

FULL = os.environ.get("DUALCBA_FUZZ") == "full"
SMALL: dict[str, Any] = {"buffer": 20, "seed": 0}


def each_once() -> list[Any]:
    """River's checks, each on its first dataset, whose first samples are enough here."""
    found = list(checks.yield_checks(RiverClassifier(**SMALL)))
    return found if FULL else list({check.__name__: check for check in reversed(found)}.values())


@pytest.mark.parametrize("check", each_once(), ids=lambda check: str(check.__name__))
def test_rivers_own_checks(check: Any) -> None:
    model = RiverClassifier(**SMALL, batch_size=1 if FULL else 5)
    dataset = getattr(check, "keywords", {}).get("dataset")
    if dataset is None or FULL:
        check(model)
    else:
        check.func(model, dataset=list(itertools.islice(dataset, 65)))


def samples(n: int, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(0, 0.3, (n, 3)) + np.eye(3)[y] * 2
    return [({"a": x[0], "b": 1e5 * x[1], "c": x[2]}, "uvw"[k]) for x, k in zip(X, y, strict=True)]


def state(model: RiverClassifier) -> dict[str, torch.Tensor]:
    assert model.learner is not None
    return model.learner.state_dict()["tensors"]  # type: ignore[no-any-return]


def test_it_learns() -> None:
    model, accuracy = RiverClassifier(**SMALL), metrics.Accuracy()
    for x, y in samples(150):
        accuracy.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert accuracy.get() > 0.8
    assert sum(model.predict_proba_one(samples(1)[0][0]).values()) == pytest.approx(1, abs=1e-12)


def test_before_the_first_sample_there_is_no_answer() -> None:
    pd = pytest.importorskip("pandas")
    model = RiverClassifier(**SMALL)
    assert model.predict_one({"a": 1}) is None
    assert model.predict_proba_one({"a": 1}) == {}
    X = pd.DataFrame({"a": [1.0, 2.0]}, index=[7, 9])
    assert model.predict_many(X).tolist() == [None, None]
    assert model.predict_proba_many(X).shape == (2, 0)


def test_features_that_arrive_become_inputs_and_all_else_is_kept() -> None:
    model = RiverClassifier(**SMALL)
    for x, y in samples(20):
        model.learn_one({"a": x["a"]}, y)
    assert model.learner is not None
    before, answers = state(model), model.predict_proba_one({"a": 1.0})
    model._inputs |= {"c": 1, "b": 2}
    grown = model._learner_with(3)  # without a step
    assert grown.input_shape == (3,)
    assert model.predict_proba_one({"a": 1.0}) == pytest.approx(answers, abs=1e-5)
    after = state(model)
    for name, value in before.items():
        part = after[name][tuple(slice(n) for n in value.shape)]
        assert torch.equal(part, value), name
    assert (after["memory.x"][:, 1:] == 0).all()  # what was missing counts as 0
    assert after["inputs.count"] == 20
    for x, y in samples(150, seed=1):
        model.learn_one(x, y)
    right = [model.predict_one(x) == y for x, y in samples(50, seed=2)]
    assert np.mean(right) > 0.85


def test_missing_unknown_and_wrong_features() -> None:
    model = RiverClassifier(**SMALL)
    for x, y in samples(20):
        model.learn_one(x, y)
    full = model.predict_proba_one({"a": 1.0, "b": 0.0, "c": 0.0})
    for x in ({"a": 1.0}, {"a": 1, "b": None, "c": np.nan}, {"a": np.float64(1), "other": 9}):
        assert model.predict_proba_one(x) == full
    before = state(model)
    for wrong in ({"a": "word"}, {"a": np.inf}, {"a": 1e300}):
        for call in (model.predict_one, lambda x: model.learn_one(x, "u")):
            with pytest.raises(ValueError, match=r"feature 'a' is .* expected a"):
                call(wrong)
    assert all(torch.equal(before[k], v) for k, v in state(model).items())
    with pytest.raises(FloatingPointError, match="times the largest"):
        model.learn_one({"a": 1e20}, "u")
    model.learn_one({"a": 1}, "u")  # goes on without the sample


def test_tables_give_what_single_samples_give() -> None:
    pd = pytest.importorskip("pandas")
    one, many = (RiverClassifier(**SMALL, batch_size=4) for _ in range(2))
    pairs = samples(42)
    for x, y in pairs:
        one.learn_one(x, y)
    for k in range(0, 42, 14):
        part = pairs[k : k + 14]
        table = pd.DataFrame([x for x, _ in part], index=range(100, 114))
        many.learn_many(table, pd.Series([y for _, y in part]))
    assert all(torch.equal(state(one)[k], v) for k, v in state(many).items())
    assert many.predict_many(table).tolist() == [
        one.predict_one(x) for x in table.to_dict("records")
    ]
    assert many.predict_many(table).index.tolist() == list(range(100, 114))
    assert many.predict_proba_many(table[:0]).shape == (0, 3)


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_copies_go_on_alike(again: Any) -> None:
    model = RiverClassifier(buffer=20, batch_size=3)  # a seed that was drawn
    pairs = samples(40)
    for x, y in pairs[:20]:
        model.learn_one(x, y)
    other = again(model)
    for x, y in pairs[20:]:
        for each in (model, other):
            each.learn_one(x, y)
    assert all(torch.equal(state(other)[k], v) for k, v in state(model).items())


def test_dates_are_labels_as_they_are() -> None:
    model = RiverClassifier(**SMALL)
    dates = np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")
    for k, (x, _) in enumerate(samples(6)):
        model.learn_one(x, dates[k % 2])
    again = pickle.loads(pickle.dumps(model))
    for one in (model, again):
        found = one.predict_one(samples(1)[0][0])
        assert isinstance(found, np.datetime64)
        assert found in dates


def test_a_pipeline_with_words() -> None:
    model = (compose.SelectType(str) | preprocessing.OneHotEncoder()) | RiverClassifier(**SMALL)
    for _ in range(20):
        model.learn_one({"colour": "red"}, 1)
        model.learn_one({"colour": "blue"}, 2)
    assert (model.predict_one({"colour": "red"}), model.predict_one({"colour": "blue"})) == (1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "learner_options is 3, expected a mapping of names to values"),
        ({"ibm": True}, "unknown learner option 'ibm', did you mean 'ibn'"),
        *(
            ({name: 3}, f"a name in learner_options is '{name}', expected an option that")
            for name in ("buffer", "boundaries", "num_classes", "network", "input_shape", "lr")
        ),
    ],
)
def test_other_options_of_the_learner(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        RiverClassifier(learner_options=given).learn_one({"a": 1}, 0)
    assert "\n" not in str(caught.value)


def test_a_recipe() -> None:
    short = RiverClassifier("best", buffer=20, seed=0)
    options = {"protocol": "p10", "method_options": {"share": 0.5}, "readout": "debiased"}
    options |= {"ibn_augment": False, "augmentation": "partial"}
    written = RiverClassifier("er+mkd", buffer=20, seed=0, learner_options=options)
    for x, y in samples(30):
        short.learn_one(x, y)
        written.learn_one(x, y)
    assert short.predict_proba_one(x) == written.predict_proba_one(x)
    assert short.learner is not None
    assert short.learner.memory_batch == 64
    assert pickle.loads(pickle.dumps(short)).predict_proba_one(x) == short.predict_proba_one(x)


def test_other_options_and_mistakes() -> None:
    model = RiverClassifier(**SMALL, learner_options={"standardise": False, "max_classes": 2})
    for x, y in samples(10):
        if y != "w":
            model.learn_one(x, y)
    assert "inputs.mean" not in state(model)
    with pytest.raises(ValueError, match="at most max_classes 2"):
        model.learn_one(samples(1)[0][0], "w")
    assert model.learner is not None
    assert model.learner.classes_ == ["u", "v"] or model.learner.classes_ == ["v", "u"]
    with pytest.raises(ValueError, match="method"):
        RiverClassifier(method="other").learn_one({"a": 1}, 0)
    assert next(iter(datasets.Phishing()))[1] in (True, False)


def test_a_pickle_of_an_earlier_version_keeps_its_read_out() -> None:
    """It has no name of one: the last layer alone predicted."""
    state = RiverClassifier(seed=0).__getstate__()
    assert state.pop("_readout") is None
    old, new = RiverClassifier(seed=0), RiverClassifier(seed=0)
    old.__setstate__(state)
    for model in (old, new):
        model.learn_one({"a": 1.0}, "x")
    assert (old._learner._predictor.readout, new._learner._predictor.readout) == ("head", "both")
    assert pickle.loads(pickle.dumps(new))._learner._predictor.readout == "both"


def test_a_first_sample_that_is_refused_leaves_nothing_to_predict() -> None:
    model = RiverClassifier(seed=0)
    with pytest.raises(ValueError, match="nan"):
        model.learn_one({"a": 1.0}, float("nan"))
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_proba_one({"a": 1.0}) == {}
    model.learn_one({"a": 1.0}, "x")
    assert model.predict_one({"a": 1.0}) == "x"


def test_features_that_could_not_be_learnt_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    model = RiverClassifier(seed=0)
    for k, label in enumerate("xy"):
        model.learn_one({"a": float(k)}, label)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "load_state_dict", fail)
        with pytest.raises(MemoryError):
            model.learn_one({"a": 1.0, "b": 2.0}, "x")
    assert model.predict_one({"a": 1.0, "b": 2.0}) in ("x", "y")
    model.learn_one({"a": 1.0}, "x")


def test_labels_that_no_state_can_hold_are_refused_at_once() -> None:
    """New inputs and copies need the state: later it would be too late for other labels."""
    pd = pytest.importorskip("pandas")
    model = RiverClassifier(seed=0)
    with pytest.raises(ValueError, match=r"y is frozenset\(\{1\}\), expected a str, an int"):
        model.learn_one({"a": 1.0}, frozenset({1}))
    with pytest.raises(ValueError, match=r"y\[1\] is b'x', expected a str, an int"):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), ["x", b"x"])  # type: ignore[arg-type]
    assert model.learner is None


def test_a_bad_label_keeps_the_samples_that_wait() -> None:
    model = RiverClassifier(seed=0, batch_size=3)
    model.learn_one({"a": 1.0}, "x")
    model.learn_one({"a": 1.0}, "x")
    waiting = len(model._waiting)
    for label in (float("nan"), []):
        with pytest.raises(ValueError, match=r"y is .*, expected a hashable value"):
            model.learn_one({"a": 1.0}, label)  # type: ignore[arg-type]
    assert len(model._waiting) == waiting
    assert model.learner is not None
    assert model.learner.step == 1


def test_a_table_with_a_mistake_is_not_learnt_in_part() -> None:
    pd = pytest.importorskip("pandas")
    model, table = RiverClassifier(seed=0), pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    for y, message in (
        (pd.Series(["x", "y"]), r"shape of y is \(2,\), expected \(3,\)"),
        (["x", float("nan"), "y"], r"y\[1\] is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            model.learn_many(table, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="feature 'a' is 'word'"):
        model.learn_many(pd.DataFrame({"a": [1.0, "word"]}), pd.Series(["x", "y"]))
    with pytest.raises(ValueError, match="feature 'a'"):
        model.learn_one({"a": 10**400}, "x")
    assert model.learner is None
    model.learn_many(table, ["x", "y", "x"])  # type: ignore[arg-type]
    assert model.predict_one({"a": 1.0}) in ("x", "y")
