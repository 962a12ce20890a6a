"""A folder that `reproduce --scale small` made: its experiments stand in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualcba.experiments import Result
from dualcba.experiments.paper.catalogue import Experiment, experiments
from dualcba.experiments.paper.selection import scaled
from dualcba.report.html import make_page
from dualcba.report.sections import report_sections, small_experiments


def made(experiment: Experiment) -> list[Result]:
    """A result for each entry and two seeds."""
    out = []
    for k, entry in enumerate(experiment.entries):
        for seed in (0, 1):
            spec = replace(entry.spec, seed=seed)
            scores = {"acc": 50.0 + k + seed * (k + 1), "fm": 9.0, "acc_auc": None}
            matrix = [[scores["acc"]] * int(spec.tasks)] * int(spec.tasks)
            both = {"bn": scores, "ibn": scores}
            matrices = {"bn": matrix, "ibn": matrix}
            out.append(Result(spec, seed, both, matrices, seconds={"train": 1.0}))
    return out


@pytest.fixture(scope="module")
def main() -> Experiment:
    return scaled(experiments()["main"])


def test_the_experiments_are_found_and_shown_once(main: Experiment) -> None:
    results = made(main)
    names = [e.name for e, _ in small_experiments(results)]
    assert {"main", "computation"} <= set(names)
    facts, sections = report_sections(results)
    assert [s.title for s in sections] == [
        "The paper’s experiments at small scale", "How each number was made"
    ]  # fmt: skip
    assert facts[0].name.startswith("Main table")
    assert "mean of 24 pairs" in facts[0].detail


def test_a_run_that_another_one_stands_for_is_not_left_over(main: Experiment) -> None:
    """`main` first, `per-task` afterwards: it needs scores at any time, and its runs serve both."""
    both = [*made(scaled(experiments()["per-task"])), *made(main)]
    for results in (both, both[::-1]):
        facts, sections = report_sections(results)
        assert len(sections) == 2
        assert not any(f.name.startswith("Highest") for f in facts)


def test_the_page_says_that_the_papers_values_do_not_apply(main: Experiment) -> None:
    page = make_page(made(main), "small")
    assert "the paper’s values do not apply" in page
    assert "ER-Dual-CBA over ER" in page
    assert "21.66" not in page


def test_a_column_that_is_not_complete_is_not_an_experiment(main: Experiment) -> None:
    first = main.entries[0].column
    kept = [e for e in main.entries if (e.row, e.column) != ("RAR", first)]
    results = [r for e in kept for r in made(Experiment(**{**vars(main), "entries": (e,)}))]
    ((_, served),) = [(e, s) for e, s in small_experiments(results) if e.name == "main"]
    assert first not in {s.entry.column for s in served}
    assert len({s.entry.column for s in served}) == 5


def test_runs_on_digits_of_ones_own_are_no_experiment(results: list[Result]) -> None:
    assert small_experiments(results) == []
