"""Labels come back as they were given, whatever NumPy would make of them."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dualcba import Learner
from dualcba.estimator import DualCBAClassifier
from dualcba.tasks.labels import Labels, as_array, as_list, read_labels


class Animal(str, Enum):  # noqa: UP042 -- NumPy cuts its values, not those of StrEnum
    CAT = "cat"
    DOG = "dog"


DAYS = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]")
GIVEN: list[Any] = [
    [Animal.CAT, Animal.DOG],
    [7, 2**63 + 7],
    [-7, 2**63 + 7],
    [7, 2**70],
    ["a\0", "b"],
    list(DAYS),
    list(DAYS - DAYS[0]),
    [np.datetime64("2024-01-01", "D"), np.datetime64("2024-01-02", "ns")],
    [date(2024, 1, 1), date(2024, 1, 2)],
]


def growing() -> Learner:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    return Learner(
        network, (2,), dtype=torch.float32, method="er", boundaries="inferred", batch_size=8, lr=0.3
    )


@pytest.mark.parametrize("labels", GIVEN, ids=str)
def test_predicted_labels_are_those_that_were_given(labels: list[Any]) -> None:
    learner = growing()
    for _ in range(40):
        learner.observe(torch.eye(2).repeat(4, 1), labels * 4)
    predicted = learner.predict(torch.eye(2))
    assert list(predicted) == labels == learner.classes_ == learner.snapshot().classes_
    if isinstance(labels[0], Animal):
        assert [type(label) for label in predicted] == [Animal, Animal]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (["a", "bc"], "<U2"),
        ([3, -1], "int64"),
        ([True, False], "bool"),
        ([0.5, 1.0], "float64"),
        ([7, 2**63], "uint64"),
        ([-7, 2**63], "object"),
        (list(DAYS), "datetime64[ns]"),
        ([1, 1.5], "object"),
    ],
    ids=str,
)
def test_labels_become_an_array_that_keeps_them(labels: list[Any], dtype: str) -> None:
    array = as_array(labels)
    assert array.dtype == np.dtype(dtype)
    assert as_list(array) == labels
    assert [type(label) for label in as_list(array)] == [type(label) for label in labels]


@pytest.mark.parametrize("unit", ["ns", "D"])
def test_an_array_of_dates_is_predicted_and_saved(unit: str, tmp_path: Path) -> None:
    days, learner = DAYS.astype(f"datetime64[{unit}]"), growing()
    for _ in range(40):
        learner.observe(torch.eye(2).repeat(4, 1), np.tile(days, 4))
    assert (learner.predict(torch.eye(2)) == days).all()
    learner.save(tmp_path / "state.safetensors")
    loaded = growing()
    loaded.load(tmp_path / "state.safetensors")
    assert loaded.classes_ == list(days)
    assert (loaded.predict(torch.eye(2)) == days).all()


def test_durations_in_any_unit_are_saved() -> None:
    labels = Labels(None)
    labels.add([*np.array([-3, 2], "timedelta64[25s]"), np.timedelta64(1, "D")])
    again = labels.from_json(json.loads(json.dumps(labels.to_json())))
    assert again == labels.names == [np.timedelta64(n, "s") for n in (-75, 50, 86400)]


@pytest.mark.parametrize("value", [{}, {"datetime64": 3}, {"datetime64": "NaT"}, {"date": "2024"}])
def test_a_wrong_date_in_a_state_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a label of the learner's state is .*, expected a str"):
        Labels(None).from_json([value])


def test_numpy_numbers_in_tuples_can_be_saved() -> None:
    learner, again = growing(), growing()
    labels = [(np.int64(1), "a"), (np.bool_(False), np.float32(0.5))]
    learner.observe(torch.eye(2), labels)
    again.load_state_dict(learner.state_dict())
    assert again.classes_ == [(1, "a"), (False, 0.5)] == learner.classes_


def test_dates_are_read_from_lists_and_arrays_alike() -> None:
    assert read_labels(list(DAYS), 2, "y") == read_labels(DAYS, 2, "y") == list(DAYS)


def test_masked_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="y has masked values"):
        read_labels(np.ma.masked_equal([1, 2], 2), 2, "y")
    assert read_labels(np.ma.masked_equal([1, 2], 3), 2, "y") == [1, 2]


@pytest.mark.parametrize("start", ["fit", "partial_fit"])
def test_a_classifier_returns_the_dates_that_it_was_given(start: str) -> None:
    x, y = np.eye(2).repeat(20, 0), DAYS.repeat(20)
    later = np.where(y == DAYS[1], DAYS[1] + np.timedelta64(1, "D"), y)
    classifier = DualCBAClassifier(random_state=0)
    getattr(classifier, start)(x, y)
    assert (classifier.partial_fit(x, y).predict(x) == y).all()
    assert (classifier.partial_fit(x, later).predict(x) == later).all()
    assert classifier.classes_.tolist() == [*DAYS.tolist(), later[-1].item()]
