"""Results of schema 1 are read as those of schema 2."""

from __future__ import annotations

from typing import Any

import pytest

from dualcba.experiments import Result, Spec, matches
from dualcba.experiments.paper.scale import source_spec
from dualcba.experiments.upgrade import provenance_from_name, upgrade_row


def old(spec: Spec, **changed: Any) -> dict[str, Any]:
    """Return a result as version 0.1.0 wrote it."""
    fields = spec.to_dict()
    part = fields.pop("agnostic_from")
    fields["adaptor"] = part or ("trained" if "dual" in spec.method else None)
    fields["options"] = fields.pop("method_options")
    top = {n: getattr(spec, n) for n in ("method", "dataset", "setting", "buffer", "seed")}
    return {**top, "status": "complete", "scores": {"bn": {"acc": 1.0}}, "spec": fields} | changed


@pytest.mark.parametrize(
    "spec",
    [
        Spec(method="er"),
        Spec(method="derpp", method_options={"alpha": 0.5}, seed=3),
        Spec(method="er-dual-cba"),
        Spec(method="er-dual-cba", agnostic_from="pretrained"),
    ],
    ids=lambda spec: spec.name,
)
def test_an_old_result_is_read(spec: Spec) -> None:
    result = Result.from_dict(old(spec))
    assert result == Result(spec, spec.seed, {"bn": {"acc": 1.0}})
    assert Result.from_dict(result.to_dict()) == result


@pytest.mark.parametrize(
    ("name", "scale"), [("cifar100-s2", "paper"), ("small-cifar100-s2", "small")]
)
def test_the_name_of_a_file_said_where_a_part_came_from(name: str, scale: str) -> None:
    spec = Spec(
        method="er-dual-cba", specific="none", seed=2, agnostic_from=f"x/{name}.safetensors"
    )
    result = Result.from_dict(old(spec))
    wanted = Spec(method="er-dual-cba", specific="none")
    assert matches(result, wanted, source_spec("cifar100", scale))
    for other in (("cifar10", scale), ("cifar100", "small" if scale == "paper" else "paper")):
        assert not matches(result, wanted, source_spec(*other))
    assert not matches(result, wanted)


def test_the_part_of_another_seed_is_a_file_like_any_other() -> None:
    assert provenance_from_name("cifar10-s2.safetensors", 3) is None
    assert provenance_from_name("runs/part.safetensors", 3) is None
    assert provenance_from_name(None, 0) is None


def test_a_part_from_a_dataset_of_ones_own() -> None:
    assert provenance_from_name("birds-s1.safetensors", 1) == {"dataset": "birds", "seed": 1}


def test_collected_rows_had_the_dataset_in_the_field() -> None:
    row = {"method": "er-dual-cba", "dataset": "cifar10", "adaptor": "from cifar100", "options": {}}
    fields, origin = upgrade_row(row)
    assert fields == {
        "method": "er-dual-cba", "dataset": "cifar10", "agnostic_from": None, "method_options": {}
    }  # fmt: skip
    assert origin is not None
    assert (origin["dataset"], origin["buffer"], origin["seed"]) == ("cifar100", 2000, None)
    assert upgrade_row({"adaptor": "pretrained"}) == ({"agnostic_from": "pretrained"}, None)
