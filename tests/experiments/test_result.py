"""A result: typed, versioned, the same after it was written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dualcba.data import load_dataset
from dualcba.experiments import Hardware, Result, Run, Spec
from dualcba.experiments.result import (
    SCHEMA,
    Anytime,
    ForeignSpec,
    frozen,
    identity,
    make_spec,
)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """What a run writes."""
    spec = Spec(method="er-dual-cba", agnostic_from="pretrained", record=["predictions"])
    run = Run(spec, load_dataset("digits"), Hardware(device="cpu"))
    for _ in run.steps():
        pass
    written: dict[str, Any] = json.loads(json.dumps(run.result()))
    return written


def test_what_a_run_writes_is_what_is_read(content: dict[str, Any]) -> None:
    result = Result.from_dict(content)
    assert result.to_dict() == content
    assert next(iter(content)) == "schema"
    assert content["schema"] == result.schema == SCHEMA == 2
    assert result.spec == Spec(**content["spec"])
    assert (result.method, result.dataset, result.seed) == ("er-dual-cba", "digits", 0)
    assert result.value("ibn", "acc") == content["scores"]["ibn"]["acc"]
    assert result.anytime.accuracy["bn"] == content["anytime"]["bn"]
    assert list(result.task_ends) == content["task_ends"]
    assert result.recordings.keys() == {"predictions"}
    assert result.complete


def test_the_origin_of_a_loaded_part_is_recorded(content: dict[str, Any]) -> None:
    """As the header of its file says."""
    origin = Result.from_dict(content).agnostic_provenance
    assert origin is not None
    assert (origin["dataset"], origin["method"]) == ("cifar100", "er-dual-cba")


def test_a_result_without_a_loaded_part_has_no_origin() -> None:
    run = Run(Spec(method="er", tasks=[1, 1]), load_dataset("digits"), Hardware(device="cpu"))
    for _ in run.steps():
        pass
    assert run.result()["agnostic_provenance"] is None


def test_what_may_be_absent_is_empty() -> None:
    spec = Spec(method="er").to_dict()
    needed = {"spec": spec, "seed": 0, "status": "complete", "scores": {"bn": {"acc": 1.0}}}
    result = Result.from_dict(needed)
    assert result == Result(Spec(method="er"), 0, {"bn": {"acc": 1.0}})
    assert result.anytime == Anytime()
    assert result.task_ends == ()
    assert "task_ends" not in result.to_dict()
    assert result.complete


def test_scores_by_their_names() -> None:
    one = Result(
        Spec(),
        0,
        {"bn": {"acc": 70.0, "acc_auc": None}},
        {"bn": [[90.0, 0.0], [60.0, 80.0]]},
        seconds={"train": 3.0},
        cost={"parameters": 11_174_000, "gpu_memory": None},
    )
    found = {n: one.value("bn", n) for n in ("acc", "acc_auc", "gpu_memory", "nothing")}
    assert found == {"acc": 70.0, "acc_auc": None, "gpu_memory": None, "nothing": None}
    assert one.value("bn", "seconds_per_task") == 1.5
    assert one.value("bn", "parameters") == pytest.approx(11.174)
    assert [one.value("bn", f"task{k}") for k in range(4)] == [None, 60.0, 80.0, None]
    assert one.value("ibn", "task1") is None
    assert one.value("ibn", "acc") is None


# ---------------------------------------------------------------- specs that cannot be made here


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "theirs"}, {"dataset": "/gone/birds.npz"}, {"new_option": 3},
        {"buffer": 0},
    ],
)  # fmt: skip
def test_a_spec_of_another_place_is_kept_as_fields(changed: dict[str, Any]) -> None:
    fields = Spec(method="er").to_dict() | changed
    result = Result.from_dict({"spec": fields, "seed": 0, "status": "complete", "scores": {}})
    assert isinstance(result.spec, ForeignSpec)
    assert result.fields == fields
    assert result.method == fields["method"]
    assert (result.spec.setting, result.spec.buffer) == ("online", fields["buffer"])
    assert result.spec.agnostic_from is None
    assert Result.from_dict(result.to_dict()) == result


def test_an_older_result_that_names_fewer_fields_has_their_defaults() -> None:
    fields = Spec(method="er").to_dict()
    del fields["boundaries"], fields["anytime"]
    assert make_spec(fields) == Spec(method="er")


# ---------------------------------------------------------------- what specs have in common


@pytest.mark.parametrize(
    "changed",
    [{"seed": 3}, {"eval_every": 0}, {"record": ["alignment"]}, {"lr": 0.03}],
)
def test_specs_of_one_identity(changed: dict[str, Any]) -> None:
    assert identity(Spec(**changed)) == identity(Spec())


@pytest.mark.parametrize(
    "changed",
    [{"method": "er"}, {"buffer": 7}, {"tasks": [5, 5]}, {"specific": "none"}, {"anytime": "bn"}],
)
def test_specs_of_another_identity(changed: dict[str, Any]) -> None:
    assert identity(Spec(**changed)) != identity(Spec())


def test_a_tuple_is_a_list_and_names_have_no_order() -> None:
    assert frozen({"a": (1, [2.0]), "b": None}) == frozen({"b": None, "a": [1, (2,)]})
    assert identity(Spec(tasks=(5, 5))) == identity(Spec(tasks=[5, 5]))


def test_a_result_cannot_be_changed() -> None:
    result = Result(Spec(), 0, {})
    with pytest.raises(AttributeError):
        result.seed = 3  # type: ignore[misc]
    assert replace(result, seed=3).seed == 3
