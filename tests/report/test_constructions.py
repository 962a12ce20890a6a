"""How many specs a report constructs: few, since the catalogue's are compared by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Result, Spec, find_results, write_result
from dualcba.experiments.paper import catalogue, scale
from dualcba.experiments.paper.catalogue import experiments, named
from dualcba.report import results as groups
from dualcba.report.comparison import compare
from dualcba.report.html import make_page

SCORES = {s: {"acc": 50.0, "fm": 9.0, "acc_auc": None} for s in ("bn", "ibn")}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Spec]]:
    """The specs that are constructed, none of which was before."""
    experiments.cache_clear()
    for cached in (catalogue._spec, groups._defaults, scale._buffer, scale.source_spec):
        cached.cache_clear()
    found: list[Spec] = []
    check = Spec.__post_init__

    def count(spec: Spec) -> None:
        found.append(spec)
        check(spec)

    monkeypatch.setattr(Spec, "__post_init__", count)
    yield found
    experiments.cache_clear()  # its entries would keep specs that were counted


def runs(out: Path, **given: Any) -> list[Result]:
    """Write and read six results: two methods, three seeds."""
    for seed in range(3):
        for method in ("er", "er-dual-cba"):
            spec = Spec(method=method, seed=seed, **given)
            matrix = {s: [[50.0] * 10] * 10 for s in SCORES}
            write_result(out, spec, Result(spec, seed, SCORES, matrix).to_dict())
    return find_results(out)


def test_six_results_on_a_dataset_of_ones_own_need_no_spec_of_the_catalogue(
    tmp_path: Path, made: list[Spec]
) -> None:
    (tmp_path / "birds.npz").touch()
    results = runs(tmp_path / "runs", dataset=str(tmp_path / "birds.npz"))
    made.clear()
    make_page(results, "own")
    assert {spec.dataset for spec in made} == {str(tmp_path / "birds.npz")}
    assert len(made) <= 6


def test_reading_constructs_one_spec_per_result(tmp_path: Path, made: list[Spec]) -> None:
    runs(tmp_path)
    made.clear()
    assert len(find_results(tmp_path)) == len(made) == 6


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 12),
        ({"dataset": "mnist"}, 12),
        ({"dataset": "cifar100", "eval_every": 0}, 60),
    ],
    ids=str,
)
def test_six_results(given: dict[str, Any], most: int, tmp_path: Path, made: list[Spec]) -> None:
    """Digits with the default memory, a dataset that the paper has not, one that it has."""
    results = runs(tmp_path, **given)
    made.clear()
    make_page(results, "six")
    assert len(made) <= most


def test_each_distinct_entry_is_constructed_once(made: list[Spec]) -> None:
    entries = [e for one in named("all") for e in one.entries]
    results = [Result(replace(e.spec, seed=seed), seed, SCORES) for e in entries for seed in (0, 1)]
    distinct = len({str(sorted(e.given.items())) for e in entries})
    assert len(made) == len(results) + distinct
    made.clear()
    rows = [row for one in named("all") for row in compare(one, results)]
    assert sum(row.seeds == (0, 1) for row in rows) == sum(e.donor is None for e in entries)
    assert len(made) == 3  # the runs that class-agnostic parts are taken from
