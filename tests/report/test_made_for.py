"""Runs stand in the tables that they were made for, and in no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import Result, Spec, make_specs, write_plan, write_result
from dualcba.experiments.paper.catalogue import Experiment, experiments
from dualcba.experiments.paper.selection import scaled
from dualcba.experiments.purpose import AskedTable, add_sweep, add_tables
from dualcba.experiments.store import distinct, find_runs
from dualcba.experiments.sweep import read_sweep
from dualcba.report import write_report
from dualcba.report.comparison import serve
from dualcba.report.html import make_page
from dualcba.report.made_for import MadeFor, made_for
from dualcba.report.sections import Downloads, report_sections
from dualcba.report.tables.model import Table


def made(experiment: Experiment) -> list[Result]:
    """A result for each entry and two seeds."""
    entries = enumerate(experiment.entries)
    return [one(entry.spec, seed, 50.0 + k) for k, entry in entries for seed in (0, 1)]


def one(spec: Spec, seed: int, acc: float) -> Result:
    spec = replace(spec, seed=seed)
    scores = {"acc": acc + seed, "fm": 9.0, "acc_auc": None, "acc_auc_last": acc + seed}
    matrix = [[acc + seed] * int(spec.tasks)] * int(spec.tasks)
    both, matrices = {"bn": scores, "ibn": scores}, {"bn": matrix, "ibn": matrix}
    return Result(spec, seed, both, matrices, seconds={"train": 1.0})


@pytest.fixture(scope="module")
def main() -> Experiment:
    return scaled(experiments()["main"])


def small(*shown: Experiment, results: list[Result]) -> MadeFor:
    return MadeFor(small=[(experiment, serve(experiment, results)) for experiment in shown])


def test_the_experiments_are_shown_once(main: Experiment) -> None:
    results = made(main)
    facts, sections = report_sections(results, small(main, results=results))
    assert [s.title for s in sections] == [
        "The paper’s experiments at small scale", "Pairwise comparison of methods",
        "How each number was made",
    ]  # fmt: skip
    assert facts[0].name.startswith("Main table")
    assert "mean of 24 pairs" in facts[0].detail


def test_a_run_that_another_one_stands_for_is_not_left_over(main: Experiment) -> None:
    """`main` first, `per-task` afterwards: it needs scores at any time, and its runs serve both."""
    other = scaled(experiments()["per-task"])
    both = [*made(other), *made(main)]
    for results in (both, both[::-1]):
        facts, sections = report_sections(results, small(main, other, results=results))
        assert [s.title for s in sections[1:]] == [
            "Pairwise comparison of methods",
            "How each number was made",
        ]
        assert not any(f.name.startswith("Highest") for f in facts)


def test_the_page_says_that_the_papers_values_do_not_apply(main: Experiment) -> None:
    results = made(main)
    page = make_page(results, "small", small(main, results=results))
    assert "the paper’s values do not apply" in page
    assert "ER-Dual-CBA over ER" in page
    assert "21.66" not in page


def test_a_table_that_was_run_in_part_has_the_rows_and_columns_that_were_run(
    main: Experiment,
) -> None:
    """It once had a line of dashes for each row that was not asked for."""
    first = main.entries[0]
    results = [one(first.spec, 0, 50.0)]
    _, sections = report_sections(results, small(main, results=results))
    (section,) = sections[0].parts
    tables = [item for item in section.items if isinstance(item, Table)]
    assert {row[0] for table in tables for row in table.rows} == {first.row}
    columns, rows = section.remarks
    assert columns.startswith("Not run: ")
    assert rows.startswith("Rows not run: ")
    here = [e.row for e in main.entries if e.column == first.column]
    others = dict.fromkeys(row for row in here if row != first.row)
    assert rows == f"Rows not run: {'; '.join(others)}."


# ---------------------------------------------------------------------- what folders say

THREE = {"dataset": "digits", "method": ["er", "er-cba", "er-dual-cba"], "buffer": 50}
"""The three rows of a table of the paper, at small scale."""


def write(out: Path, results: list[Result]) -> Path:
    for result in results:
        assert isinstance(result.spec, Spec)
        write_result(out, result.spec, result.to_dict())
    return out


def own(out: Path, *, plan: bool = True) -> Path:
    specs = make_specs(THREE)
    if plan:
        write_plan(out, specs)
    return write(out, [one(spec, 0, 60.0) for spec in specs])


@pytest.mark.parametrize("plan", [True, False])
def test_runs_on_digits_of_ones_own_are_no_experiment(plan: bool, tmp_path: Path) -> None:
    """They once stood as 'CIFAR-10, M = 200' of the paper's table of costs, at small scale."""
    runs = find_runs(own(tmp_path, plan=plan))
    found = made_for(runs)
    assert (found.small, found.paper, found.own) == ([], [], [])
    _, sections = report_sections(distinct(runs.values()), found)
    assert [s.title for s in sections] == [
        "Digits, online, M = 50", "Pairwise comparison of methods", "How each number was made"
    ]  # fmt: skip
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "CIFAR" not in page
    assert "small scale" not in page


def test_nor_are_runs_of_ones_own_on_a_dataset_of_the_paper(tmp_path: Path) -> None:
    specs = make_specs({"dataset": "cifar100", "method": ["er", "er-dual-cba"], "eval_every": 0})
    write_plan(tmp_path, specs)
    found = made_for(find_runs(write(tmp_path, [one(spec, 0, 20.0) for spec in specs])))
    assert found == MadeFor()


def test_the_same_runs_that_reproduce_made_are_one(tmp_path: Path) -> None:
    add_tables(own(tmp_path), [AskedTable("computation", "small"), AskedTable("main", "small")])
    found = made_for(find_runs(tmp_path))
    assert [experiment.name for experiment, _ in found.small] == ["main", "computation"]
    assert found.paper == []


def test_a_folder_of_an_earlier_version_is_compared_at_the_papers_scale(tmp_path: Path) -> None:
    """`dualcba reproduce` did not write what its runs are for, and never wrote a plan."""
    spec = Spec(dataset="cifar100", method="er", eval_every=0)
    found = made_for(find_runs(write(tmp_path, [one(spec, 0, 20.0)])))
    assert "main" in [experiment.name for experiment, _ in found.paper]
    assert found.small == []


def test_several_folders_each_with_its_own(tmp_path: Path) -> None:
    add_tables(own(tmp_path / "a"), [AskedTable("computation", "small")])
    other = [one(Spec(method="er", buffer=70), seed, 40.0) for seed in (0, 1)]
    write_plan(tmp_path / "b", [Spec(method="er", buffer=70)])
    write(tmp_path / "b", other)
    page = write_report(tmp_path / "a", tmp_path / "b", to=tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    text = page.read_text(encoding="utf-8")
    assert "5 runs, 3 methods, 2 seeds" in text
    assert "<h1>a, b</h1>" in text
    assert "small scale" in text
    assert "Digits, online, M = 70" in text


def test_a_sweep_has_a_section_of_its_own(tmp_path: Path) -> None:
    sweep = read_sweep({"buffer": [20, 50], "score": "acc_auc_last"})
    specs = [Spec(method="er", buffer=m, validation=0.1) for m in (20, 50)]
    write(tmp_path, [one(spec, seed, 40.0 + spec.buffer) for spec in specs for seed in (0, 1)])
    names = [replace(spec, seed=seed).name for spec in specs for seed in (0, 1)]
    add_sweep(tmp_path, sweep, names)
    runs = find_runs(tmp_path)
    _, sections = report_sections(distinct(runs.values()), made_for(runs))
    assert [s.title for s in sections] == [
        "Sweep over buffer: Digits, online",
        "How each number was made",
    ]
    (files,) = (item for item in sections[0].items if isinstance(item, Downloads))
    assert (
        r"\caption{Sweep over buffer: Digits, online}"
        in files.files["sweep-over-buffer-digits-online.tex"]
    )
    assert ",acc_auc_last," in files.files["sweep-over-buffer-digits-online.csv"]
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "best er: buffer 50 (AUC, last task 90.5±6.4, IBN)" in text
    assert "on the test data: dualcba run --method er --dataset digits --buffer 50" in text


def test_a_sweep_that_was_interrupted_says_so(tmp_path: Path) -> None:
    specs = [Spec(method="er", buffer=m, validation=0.1) for m in (20, 50, 100)]
    add_sweep(tmp_path, read_sweep({"buffer": [20, 50, 100]}), [spec.name for spec in specs])
    write(tmp_path, [one(spec, 0, 40.0) for spec in specs[:2]])
    says = "2 of 3 runs are complete; the best may change"
    assert says in write_report(tmp_path).read_text(encoding="utf-8")
    write(tmp_path, [one(specs[2], 0, 40.0)])
    assert "the best may change" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_a_sweep_does_not_stand_for_runs_on_other_data(tmp_path: Path) -> None:
    spec = Spec(method="er", buffer=20, validation=0.1)
    swept, plain = (replace(one(spec, 0, 40.0), data=DataOrigin("own", None, d * 64)) for d in "ab")
    write(tmp_path / "swept", [swept])
    add_sweep(tmp_path / "swept", read_sweep({"buffer": [20, 50]}), [spec.name])
    write(tmp_path / "plain", [plain])
    runs = find_runs(tmp_path)
    _, sections = report_sections(distinct(runs.values()), made_for(runs))
    assert [s.title for s in sections[:2]] == [
        "Sweep over buffer: Digits, online",
        f"Digits (digest {'b' * 12}), online, M = 20, 10 % validation split",
    ]


def test_a_table_that_cannot_be_read_here_leaves_its_runs_among_ones_own(tmp_path: Path) -> None:
    add_tables(own(tmp_path), [AskedTable("t", toml="[rows.a]\nmethod = 'not-installed'\n")])
    runs = find_runs(tmp_path)
    found = made_for(runs)
    (line,) = found.left_out
    assert found == MadeFor(left_out=[line])
    shown = "the table 't' is left out, its runs are shown by dataset: "
    assert line.startswith(f"{shown}row 'a', column 't': unknown method 'not-installed'")
    _, sections = report_sections(distinct(runs.values()), found)
    left_out, rest, *_ = sections
    assert (left_out.title, rest.title) == ("Tables left out", "Digits, online, M = 50")
    assert left_out.items == [f"T{line[1:]}."]
    told: list[str] = []
    write_report(tmp_path, tell=told.append)
    assert told == [line]
