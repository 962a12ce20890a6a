"""Ours beside the paper's, and paired tests over seeds, on values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from dualcba.evaluation import interval
from dualcba.experiments.catalog import Entry, Experiment
from dualcba.report.comparison import (
    Cell,
    Measure,
    Served,
    Share,
    compare,
    measure,
    paired_t,
    paired_tests,
    serve,
    value,
    within_tolerance,
)

Result = dict[str, Any]


def made(method: str, seed: int, bn: float | None, ibn: float | None = None) -> Result:
    return {
        "method": method, "seed": seed, "spec": {"method": method},
        "scores": {"bn": {"acc": bn}, "ibn": {"acc": ibn if ibn is not None else bn}},
        "accuracy_matrix": {"bn": [[90.0, 1.0], [60.0, 80.0]]},
    }  # fmt: skip


def served(method: str, values: list[float | None], **spec: Any) -> Served:
    entry = Entry(method, "here", {"method": method, **spec}, "bn", {})
    return Served(entry, tuple(made(method, k, v) for k, v in enumerate(values)))


def test_each_entry_has_its_row_and_our_mean_under_both_norms(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    er, dual, absent = compare(experiment(), results)
    values = [r["scores"]["bn"]["acc"] for r in results if r["method"] == "er"]
    mean, half = interval(values)
    assert er.cells[0].bn == Measure(mean, half, 2)
    assert er.seeds == (0, 1)
    assert er.cells[0].difference == pytest.approx(mean - 70.0)
    values = [r["scores"]["ibn"]["acc"] for r in results if r["method"] == "er-dual-cba"]
    assert dual.cells[0].difference == pytest.approx(np.mean(values) - 75.0)
    assert dual.cells[1].difference is None
    assert absent.seeds == ()
    assert (absent.cells[0].bn, absent.cells[0].within) == (None, None)


def test_a_seed_counts_once(experiment: Callable[..., Experiment], results: list[Result]) -> None:
    assert [len(s.results) for s in serve(experiment(), [*results, *results])] == [2, 2, 0]


def test_an_unfinished_run_serves_nothing(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    stopped = [{**r, "status": "stopped"} for r in results]
    assert not any(s.results for s in serve(experiment(), stopped))


@pytest.mark.parametrize(
    ("ours", "paper", "within"),
    [
        (Measure(24.0, 0.1, 3), 21.5, True),
        (Measure(24.1, 0.1, 3), 21.5, False),
        (Measure(27.0, 6.0, 3), 21.5, True),
        (Measure(24.1, None, 1), 21.5, False),
        (None, 21.5, None),
        (Measure(24.0, 1.0, 3), None, None),
    ],
)
def test_within_the_wider_of_tolerance_and_interval(
    ours: Measure | None, paper: float | None, within: bool | None
) -> None:
    assert Cell("acc", "bn", ours, None, paper).within is within


def test_the_share_counts_only_what_can_be_compared(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    rows = compare(experiment(), results)
    assert within_tolerance(rows).cells == 3
    assert within_tolerance(rows, "acc").cells == 2
    assert within_tolerance([]) == Share(0, 0)
    assert within_tolerance([]).percent is None


def test_a_score_per_task_comes_from_the_matrix() -> None:
    result = made("er", 0, 70.0)
    assert [value(result, "bn", s) for s in ("task1", "task2", "task3")] == [60.0, 80.0, None]
    assert value(result, "ibn", "task1") is None
    assert value(result, "bn", "nothing") is None


def test_one_unmeasured_seed_leaves_no_mean() -> None:
    assert measure([made("er", 0, 40.0), made("er", 1, None)], "bn", "acc") is None
    assert measure([], "bn", "acc") is None
    assert measure([made("er", 0, 40.0)], "bn", "acc") == Measure(40.0, None, 1)


def test_paired_t_is_scipys() -> None:
    a, b = [30.1, 31.0, 29.5], [24.0, 24.9, 24.1]
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    mean, half, p = paired_t(gaps)
    assert p == pytest.approx(ttest_rel(a, b).pvalue)
    assert (mean, half) == interval(gaps)


def test_a_dual_cba_is_tested_against_its_base_on_common_seeds() -> None:
    base, dual = served("er", [20.0, 22.0, 21.0]), served("er-dual-cba", [25.0, 26.0])
    other = served("derpp", [1.0, 2.0])
    tests = paired_tests([base, dual, other])
    assert [(t.base, t.dual, t.norm, t.seeds) for t in tests] == [
        ("er", "er-dual-cba", "bn", 2),
        ("er", "er-dual-cba", "ibn", 2),
    ]
    assert tests[0].difference == pytest.approx(4.5)


def test_under_one_norm_at_a_time() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 26.0])
    for r in dual.results:
        r["scores"]["ibn"]["acc"] += 10
    bn, ibn = paired_tests([base, dual])
    assert (bn.difference, ibn.difference) == (pytest.approx(4.5), pytest.approx(14.5))


def test_one_seed_has_neither_interval_nor_p() -> None:
    test = paired_tests([served("er", [20.0]), served("er-dual-cba", [25.0])])[0]
    assert (test.difference, test.half, test.p) == (5.0, None, None)


def test_no_common_seed_has_no_difference() -> None:
    test = paired_tests([served("er", [None]), served("er-dual-cba", [25.0])])[0]
    assert (test.seeds, test.difference, test.p) == (0, None, None)


def test_runs_that_differ_in_more_than_the_adaptor_are_not_paired() -> None:
    dual = served("er-dual-cba", [25.0, 26.0], buffer=200)
    assert paired_tests([served("er", [20.0, 21.0], buffer=100), dual]) == []
    elsewhere = replace(dual, entry=replace(dual.entry, column="there"))
    assert paired_tests([served("er", [20.0, 21.0], buffer=200), elsewhere]) == []


def test_a_spec_that_stands_twice_is_tested_once() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 26.0])
    again = replace(base, entry=replace(base.entry, row="ER + IBN", norm="ibn"))
    assert len(paired_tests([base, again, dual])) == 2
