"""Each field of a result has a rule; an error names the field, its value and the rule."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from dualcba.experiments import Result, Spec

GOOD: dict[str, Any] = {
    "schema": 2,
    "spec": Spec(method="er", tasks=[5, 5]).to_dict(),
    "seed": 0,
    "status": "complete",
    "scores": {"bn": {"acc": 50.0, "fm": None}},
    "accuracy_matrix": {"bn": [[90.0, 0.0], [60.0, 80.0]]},
    "anytime": {"step": [5, 10], "task": [0, 1], "bn": [[50.0], [50.0, 60.0]], "ibn": []},
    "task_ends": [5, 10],
    "recordings": {
        "predictions": {s: [[1] * 10] * 10 for s in ("bn", "ibn")},
        "transitions": [
            {
                "task": 2, "step": [-1, 0],
                "old": {"p_old": [0.5, 0.5], "p_new": [0.5, 0.5]},
                "new": {"p_old": [0.5, 0.5], "p_new": [0.5, 0.5]},
                "classes": {"class": 4, "before": [0.1] * 10, "after": [0.1] * 10},
            }
        ],
        "alignment": {"step": [1, 2], "with": [None, None], "without": [0.1, 0.2], "head": {}},
        "other": 3,
    },
    "seconds": {"train": 1.0},
    "cost": {"parameters": 10, "gpu_memory": None},
    "versions": {"torch": "2"},
}  # fmt: skip


def test_a_good_result_is_read() -> None:
    assert Result.from_dict(copy.deepcopy(GOOD)).recordings["other"] == 3


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("spec.method", 3, "has spec.method of 3, expected text"),
        ("spec.buffer", -1, "has spec.buffer of -1, expected a whole number of at least 0"),
        ("spec.network", ["a"], "has spec.network of ['a'], expected one value"),
        ("spec.tasks", 2.5, "spec.tasks is 2.5, expected a number of tasks"),
        ("spec.class_order", {}, "spec.class_order is {}, expected 'natural'"),
        ("spec.agnostic_from", 3, "has spec.agnostic_from of 3, expected text"),
        ("spec.record", [3], "has spec.record[0] of 3, expected text"),
        ("spec.method_options", [], "has spec.method_options of [], expected an object"),
        ("seed", True, "has seed of True, expected a whole number of at least 0"),
        ("seed", 2**70, f"has seed of {2**70}, expected a whole number"),
        ("status", None, "has status of None, expected text"),
        ("scores.bn.acc", "50", "has scores.bn.acc of '50', expected a number from"),
        ("scores.bn.acc", float("nan"), "has scores.bn.acc of nan, expected a number from"),
        ("scores.bn.acc", 10**400, "has scores.bn.acc of 1000"),
        ("accuracy_matrix.bn", [[]], "has accuracy_matrix.bn[0] of [], expected a list of at"),
        ("accuracy_matrix.bn", [[101]], "has accuracy_matrix.bn[0][0] of 101, expected a number"),
        ("anytime.step", 3, "has anytime.step of 3, expected a list"),
        ("anytime.task", [0], "has length of anytime.task of 1, expected 2"),
        ("anytime.bn", [[50.0]], "has length of anytime.bn of 1, expected 2"),
        ("anytime.bn", [[], [1]], "has anytime.bn[0] of [], expected a list of at least 1"),
        ("anytime", {"bn": []}, "lacks 'step' in anytime, expected the result of a run"),
        ("task_ends", 5, "has task_ends of 5, expected a list of at least 0"),
        ("task_ends", [5, -1], "has task_ends[1] of -1, expected a whole number of at least 0"),
        ("task_ends", [5, 5], "has task_ends of [5, 5], expected steps in increasing order"),
        ("recordings", [], "has recordings of [], expected an object"),
        ("recordings.predictions.bn", [[1]], "tasks is [5, 5], expected sizes"),
        ("recordings.predictions.ibn", [[1]], "has length of recordings.predictions.ibn of 1"),
        ("recordings.predictions.bn", [[0] * 10] * 10, "has no prediction in recordings.pred"),
        ("recordings.transitions", [3], "has recordings.transitions[0] of 3, expected an object"),
        ("recordings.transitions", [{}] * 2, "lacks 'task' in recordings.transitions[0]"),
        ("recordings.alignment.with", [1], "has length of recordings.alignment.with of 1"),
        ("seconds.train", -1, "has seconds.train of -1, expected a number from 0"),
        ("cost.parameters", "x", "has cost.parameters of 'x', expected a number"),
        ("versions", {"torch": 2}, "has versions.torch of 2, expected text"),
        ("agnostic_provenance", [], "has agnostic_provenance of [], expected an object"),
    ],
)
def test_what_does_not_fit_is_named(place: str, value: Any, says: str) -> None:
    content = copy.deepcopy(GOOD)
    *outer, name = place.split(".")
    inner = content
    for key in outer:
        inner = inner[key]
    inner[name] = value
    with pytest.raises(ValueError, match=re.escape(says)):
        Result.from_dict(content)


def moment(**changed: Any) -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy(GOOD)
    content["recordings"]["transitions"][0].update(changed)
    return content


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"task": 3}, "task of recordings.transitions[0].classes of 3, expected a number from 1"),
        ({"step": [0]}, "has length of recordings.transitions[0].old.p_old of 2, expected 1"),
        ({"old": {"p_old": [2, 0]}}, "lacks 'p_new' in recordings.transitions[0].old"),
        (
            {"classes": {"class": 10, "before": [0.1] * 10, "after": [0.1] * 10}},
            "has recordings.transitions[0].classes.class of 10, expected a number from 0 to 9",
        ),
        (
            {"classes": {"class": 1, "before": [0.1] * 10, "after": [0.1]}},
            "has length of recordings.transitions[0].classes.after of 1, expected 10",
        ),
    ],
)
def test_what_does_not_fit_in_a_transition_is_named(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Result.from_dict(moment(**changed))


def test_there_is_a_transition_for_each_boundary() -> None:
    content = copy.deepcopy(GOOD)
    content["recordings"]["transitions"] *= 2
    with pytest.raises(ValueError, match=r"length of recordings.transitions of 2, expected 1"):
        Result.from_dict(content)
