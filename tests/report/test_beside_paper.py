"""Ours beside the paper's, on values worked out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from dualcba.evaluation import interval
from dualcba.experiments import Result, Spec
from dualcba.experiments.paper.catalogue import Experiment
from dualcba.report.agreement import Tally, tally
from dualcba.report.comparison import Cell, Measure, compare, measure, serve


def made(method: str, seed: int, bn: float | None) -> Result:
    scores = {"bn": {"acc": bn}, "ibn": {"acc": bn}}
    return Result(Spec(method=method, seed=seed), seed, scores)


def test_each_entry_has_its_row_and_our_mean_with_both_statistics(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    er, dual, absent = compare(experiment(), results)
    values = [r.scores["bn"]["acc"] for r in results if r.method == "er"]
    mean, half = interval(values)
    assert er.cells[0].bn == Measure(mean, half, 2)
    assert er.seeds == (0, 1)
    assert er.cells[0].difference == pytest.approx(mean - 70.0)
    values = [r.scores["ibn"]["acc"] for r in results if r.method == "er-dual-cba"]
    assert dual.cells[0].difference == pytest.approx(np.mean(values) - 75.0)
    assert dual.cells[1].difference is None
    assert absent.seeds == ()
    assert (absent.cells[0].bn, absent.cells[0].within) == (None, None)


def test_a_seed_counts_once(experiment: Callable[..., Experiment], results: list[Result]) -> None:
    assert [len(s.results) for s in serve(experiment(), [*results, *results])] == [2, 2, 0]


def test_an_unfinished_run_serves_nothing(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    stopped = [dataclasses.replace(r, status="stopped") for r in results]
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
    assert tally(rows).run == 3
    assert tally(rows, "acc").run == 2
    assert tally([]) == Tally()


def test_one_unmeasured_seed_leaves_no_mean() -> None:
    assert measure([made("er", 0, 40.0), made("er", 1, None)], "bn", "acc") is None
    assert measure([], "bn", "acc") is None
    assert measure([made("er", 0, 40.0)], "bn", "acc") == Measure(40.0, None, 1)


def test_costs_are_not_compared_with_the_papers(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    entry = experiment().entries[0]
    paper = {"parameters": 11.174, "gpu_memory": 1072.0, "seconds_per_task": 1e9}
    entries = (dataclasses.replace(entry, paper=paper),)
    (row,) = compare(experiment(scores=tuple(paper), entries=entries), results)
    parameters, memory, seconds = row.cells
    assert parameters.ours == Measure(pytest.approx(0.08, abs=0.08), pytest.approx(0.0), 2)
    assert memory.ours is None  # there is no GPU
    trained = [r.seconds["train"] / 5 for r in results if r.method == "er"]
    assert seconds.ours is not None
    assert seconds.ours.mean == pytest.approx(np.mean(trained))
    assert seconds.difference is not None
    assert (tally([row]).agree, tally([row]).run) == (0, 0)
