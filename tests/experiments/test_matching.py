"""Which results serve a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import Result, Spec, matches
from dualcba.experiments.matching import Index
from dualcba.experiments.paper.catalogue import Entry, experiments
from dualcba.experiments.paper.scale import source_spec
from dualcba.report.comparison import serve


def result(seed: int = 0, **given: Any) -> Result:
    return Result(Spec(**given, seed=seed), seed, {})


def entry(**given: Any) -> Entry:
    return Entry("row", "column", {"dataset": "digits", **given}, "bn", {})


def test_a_result_serves_its_spec_whatever_the_seed() -> None:
    assert matches(result(3, method="er", buffer=50), Spec(method="er", buffer=50))
    cifar = Spec(method="er", dataset="cifar100")
    assert matches(result(method="er", dataset="cifar100"), cifar)


@pytest.mark.parametrize(
    "changed",
    [{"method": "er-cba"}, {"buffer": 51}, {"lr": 0.1}, {"tasks": 2}, {"network": "resnet18-slim"},
     {"setting": "offline"}, {"class_order": [1, 0, *range(2, 10)]}, {"validation": 0.1},
     {"protocol": "p10"}, {"optimizer": "adam"}, {"momentum": 0.9}, {"memory_batch": 20}],
)  # fmt: skip
def test_a_changed_spec_is_another(changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"method": "er", "buffer": 50}
    one = result(**given | changed)
    assert not matches(one, Spec(**given))
    assert Index([one]).serving(entry(**given)) == ()


def test_the_papers_experiments_take_test_data_only() -> None:
    experiment = experiments()["main"]
    given = [dict(e.given) | {"seed": 0} for e in experiment.entries[:8]]
    on_test = [Result(Spec(**g), 0, {}) for g in given]
    held_out = [Result(Spec(**g, validation=0.1), 0, {}) for g in given]
    assert any(s.results for s in serve(experiment, on_test))
    assert not any(s.results for s in serve(experiment, held_out))


def test_results_on_two_datasets_of_one_name_do_not_serve_one_table() -> None:
    """Whatever their order, and whether they serve one entry or two."""
    first, other, old = (
        replace(result(seed, method=m), data=digest and DataOrigin("own", None, digest * 64))
        for seed, m, digest in ((0, "er", "a"), (1, "er-cba", "b"), (1, "er", None))
    )
    table = replace(experiments()["main"], entries=(entry(method="er"), entry(method="er-cba")))
    assert [len(s.results) for s in serve(table, [first, old])] == [2, 0]
    for results in ([first, other], [other, first], [first, replace(first, data=other.data)]):
        with pytest.raises(ValueError, match=r"on two datasets digits: .*, expected one"):
            serve(table, results)


def test_other_options_of_the_method_are_another_spec() -> None:
    assert not matches(result(method="derpp", method_options={"alpha": 1}), Spec(method="derpp"))


def test_an_incomplete_result_serves_nothing() -> None:
    assert not matches(replace(result(method="er"), status="running"), Spec(method="er"))


def test_any_time_scores_serve_where_only_the_ends_are_asked_for() -> None:
    often, rare = result(method="er", eval_every=5), result(method="er", eval_every=0)
    assert matches(often, Spec(method="er", eval_every=0))
    assert not matches(rare, Spec(method="er", eval_every=5))
    assert not matches(often, Spec(method="er", eval_every=20))


def test_more_recordings_serve_where_fewer_are_asked_for() -> None:
    one = result(method="er", record=["predictions", "transitions"])
    assert matches(one, Spec(method="er", record=["transitions"]))
    assert not matches(one, Spec(method="er", record=["alignment"]))
    assert matches(one, Spec(method="er"))


def test_one_result_per_seed() -> None:
    results = [result(s, method="er", eval_every=k) for s, k in ((2, 5), (0, 5), (0, 0), (1, 7))]
    served = Index(results).serving(entry(method="er", eval_every=0))
    assert [r.seed for r in served] == [0, 1, 2]
    assert served[0] is results[1]


# ---------------------------------------------------------------- parts from another run

SOURCE = source_spec("cifar100", "paper")
ORIGIN = {name: getattr(SOURCE, name) for name in ("dataset", "method", "buffer", "tasks")}


def loading(**origin: Any) -> Result:
    one = result(1, method="er-dual-cba", agnostic_from="part.safetensors")
    return replace(one, agnostic_provenance=origin)


def test_the_file_itself_says_where_a_part_came_from() -> None:
    wanted = Spec(method="er-dual-cba", specific="none")
    assert matches(loading(**ORIGIN, seed=1), wanted, SOURCE)
    donated = replace(entry(method="er-dual-cba", specific="none"), donor="cifar100")
    assert len(Index([loading(**ORIGIN, seed=1)]).serving(donated)) == 1
    assert not matches(loading(**ORIGIN, seed=0), wanted, SOURCE)  # the run of another seed
    assert not matches(loading(**ORIGIN | {"buffer": 5}, seed=1), wanted, SOURCE)
    assert not matches(loading(**ORIGIN, validation=0.1, seed=1), wanted, SOURCE)
    assert not matches(loading(**ORIGIN, protocol="p10", seed=1), wanted, SOURCE)
    assert not matches(loading(), wanted, SOURCE)
    assert not matches(loading(**ORIGIN, seed=1), wanted)
    assert not matches(result(1, method="er-dual-cba", specific="none"), wanted, SOURCE)


def test_the_shipped_part_is_not_that_of_a_run() -> None:
    one = result(0, method="er-dual-cba", agnostic_from="pretrained")
    one = replace(one, agnostic_provenance={**ORIGIN, "seed": 0})
    assert matches(one, Spec(method="er-dual-cba", agnostic_from="pretrained"))
    assert not matches(one, Spec(method="er-dual-cba", specific="none"), SOURCE)
