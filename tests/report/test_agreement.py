"""Agreement with the paper, counted over all of its cells, in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualcba.experiments import Result, Spec
from dualcba.experiments.paper.catalogue import FRONTIER, NAMES, READINGS, Entry, experiments
from dualcba.report.agreement import COUNTED, agreement_tables, paper_entries, planned, tried
from dualcba.report.comparison import serve
from dualcba.report.made_for import MadeFor
from dualcba.report.results import collections
from dualcba.report.sections import report_sections

CELLS = {
    "main": (102, 102), "semi": (72, 72), "blurry": (24, 24), "offline": (24, 24),
    "per-task": (9, 0), "normalisation": (32, 32), "transfer-intra": (14, 14),
    "transfer-inter": (9, 9), "bilevel": (6, 6), "architecture": (8, 8), "small-buffers": (27, 27),
}  # fmt: skip
"""How many values of ACC and of FM each table of the paper has; its repeated rows count once."""


def run(method: str, acc: float, fm: float, **fields: object) -> Result:
    scores = {s: {"acc": acc, "fm": fm} for s in ("bn", "ibn")}
    given = {"method": method, "dataset": "cifar100", "buffer": 2000, "eval_every": 0} | fields
    return Result(Spec(**given), 0, scores)  # type: ignore[arg-type]


def test_the_number_of_cells() -> None:
    found = {
        name: tuple(
            sum(entry.paper.get(score) is not None for entry in paper_entries(experiment))
            for score in COUNTED
        )
        for name, experiment in experiments().items()
    }
    assert {name: counts for name, counts in found.items() if any(counts)} == CELLS
    assert [sum(counts) for counts in zip(*CELLS.values(), strict=True)] == [327, 318]
    assert set(experiments()) == {*NAMES, *READINGS, *FRONTIER}


def test_all_cells_are_counted_and_those_that_disagree_are_listed() -> None:
    usual = {"forward": "concat", "loss_mean": "samples"}
    options = {"weight": 4.0, "released": True}
    results = [run("er", 22.0, 25.0), run("ss-il", 40.0, 9.0, method_options=options, **usual)]
    heavy = options | {"weight": 5.0}
    results.append(run("ss-il", 11.0, 10.0, method_options=heavy, **usual))
    shown = [(experiments()["main"], serve(experiments()["main"], results))]
    every = [s for group in collections(results) for s in group.served]
    counts, acc, fm = agreement_tables(shown, every)
    assert ("main", "CIFAR-100, M = 2000", "1 of 2", "17", "1 of 2", "17") in counts.rows
    assert ("main", "CIFAR-10, M = 200", "not run", "17", "not run", "17") in counts.rows
    assert ("per-task", "CIFAR-10, M = 200", "not run", "3", "", "") in counts.rows
    assert counts.rows[-1] == ("all", "", "1 of 2, 50 %", "327", "1 of 2, 50 %", "318")
    assert "Of the 327 values of ACC in the paper, 1 agree (0 %), 1 do not, and 325" in counts.note
    (row,) = acc.rows
    assert row[:6] == ("main", "CIFAR-100, M = 2000", "SS-IL", "40.0 (1 seed)", "24.90", "+15.1")
    assert row[6].startswith("weight = 5.0: 11.0 (1 seed); not run yet: “SS-IL, default”")
    assert [line[2] for line in fm.rows] == ["ER"]


def test_a_run_with_the_defaults_of_a_method_was_tried() -> None:
    usual = {"merge": True, "frozen": True, "drop": 10, "released": True}
    results = [run("lucir", 50.0, 9.0, method_options=usual), run("lucir", 12.0, 10.0)]
    moving = {"merge": True, "drop": 10, "released": True}
    results.append(run("lucir", 13.0, 10.0, method_options=moving))
    shown = [(experiments()["main"], serve(experiments()["main"], results))]
    every = [s for group in collections(results) for s in group.served]
    _, acc, _ = agreement_tables(shown, every)
    (row,) = acc.rows
    every = "drop = default, frozen = default, merge = default, released = default"
    assert f"{every}: 12.0 (1 seed)" in row[6]
    assert "frozen = default: 13.0 (1 seed)" in row[6]
    assert "drop = 10: " not in row[6]


def cell(experiment: str, method: str, donor: str | None = None) -> Entry:
    entries = experiments()[experiment].entries
    return next(
        e for e in entries
        if (e.method, e.donor, e.column) == (method, donor, "CIFAR-100, M = 2000")
    )  # fmt: skip


def names_of_tried(
    entry: Entry, method: str, donor: str | None = None, **fields: object
) -> list[str]:
    """Return how a run is named among those tried for an entry, unless it is of another cell."""
    path = {} if donor is None else {"agnostic_from": "part.safetensors"}
    one = run(method, 20.0, 9.0, **path, **fields)
    one = replace(one, agnostic_provenance=donor and {"dataset": donor, "seed": 0})
    return [name for name, _ in tried(entry, [s for g in collections([one]) for s in g.served])]


def test_what_was_tried_for_a_cell_has_its_data_and_its_class_agnostic_part() -> None:
    own, given = cell("main", "er-dual-cba"), cell("transfer-inter", "er-dual-cba", "cifar10")
    assert names_of_tried(own, "er-dual-cba", lr=0.1) == ["lr = 0.1"]
    assert names_of_tried(own, "er-dual-cba") == []  # the cell itself
    for other in ({"buffer": 5000}, {"tasks": 20}, {"validation": 0.1}, {"protocol": "p10"}):
        assert names_of_tried(own, "er-dual-cba", lr=0.1, **other) == []
    for donor in ("cifar10", ""):  # or a part of which nothing is known
        assert names_of_tried(own, "er-dual-cba", donor, lr=0.1) == []
    individual = {"specific": "individual", "divide": True}
    assert names_of_tried(given, "er-dual-cba", "cifar10", **individual) == ["divide = yes"]
    assert names_of_tried(given, "er-dual-cba", "tiny-imagenet", **individual) == []
    assert names_of_tried(given, "er-dual-cba", **individual) == []
    rest = planned(given, lambda entry: False)
    assert "divided, from CIFAR-10, individual" in rest
    assert all("from CIFAR-10" in row for row in rest)
    assert not any("from" in row for row in planned(own, lambda entry: False))


def test_the_report_has_them_above_the_tables() -> None:
    results = [run("er", 22.0, 25.0)]
    shown = [(experiments()["main"], serve(experiments()["main"], results))]
    _, sections = report_sections(results, MadeFor(paper=shown))
    (paper,) = [s for s in sections if s.title == "Comparison with the paper"]
    assert [part.title for part in paper.parts] == ["Agreement with the paper", "Main results"]


@pytest.mark.parametrize("name", ["anytime", "controls"])
def test_a_table_without_the_papers_values_has_none(name: str) -> None:
    shown = [(experiments()[name], serve(experiments()[name], [run("er", 22.0, 25.0)]))]
    assert agreement_tables(shown) == []
