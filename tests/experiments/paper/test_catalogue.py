"""The paper's values: transcribed in the package, held here against what the paper prints of them.

The paper prints gains, bold type, means and the same numbers in several tables; each is recomputed
from the values of the package. Where the paper contradicts itself, the test says so.
"""

from __future__ import annotations

import numpy as np
import pytest

from dualcba.experiments import Spec
from dualcba.experiments.paper.catalogue import (
    NAMES,
    READINGS,
    Entry,
    Experiment,
    experiments,
    named,
)

Cells = dict[str, list[dict[str, float | None]]]
BASES = ("ER", "DER", "CLSER", "RAR")
DER = ("DER++", "DER-CBA", "DER-Dual-CBA")
TRIPLES = [DER if b == "DER" else (b, f"{b}-CBA", f"{b}-Dual-CBA") for b in BASES]


def cells(name: str) -> Cells:
    """The paper's values of an experiment: by row, one dictionary per column, empty if no cell."""
    experiment = experiments()[name]
    columns = list(dict.fromkeys(e.column for e in experiment.entries))
    table: Cells = {e.row: [{} for _ in columns] for e in experiment.entries}
    for entry in experiment.entries:
        table[entry.row][columns.index(entry.column)] = entry.paper
    return table


def pairs(name: str, row: str) -> list[tuple[float | None, float | None]]:
    return [(c["acc"], c["fm"]) for c in cells(name)[row]]


def value(table: Cells, row: str, column: int, key: str) -> float:
    found = table[row][column][key]
    assert found is not None
    return found


# ---------------------------------------------------------------- the paper against itself

GAINS = {  # ACC and FM of Dual-CBA minus the base method, as printed in red
    "ER": "+5.04 -21.57 +5.16 -23.80 +7.48 -24.31 +7.70 -25.90 +5.78 -20.93 +6.85 -22.35",
    "DER": "+3.67 -21.71 +0.34 -21.86 +10.10 -33.67 +12.51 -36.46 +9.23 -27.32 +10.80 -28.25",
    "CLSER": "+5.35 -24.53 +1.37 -15.30 +7.97 -26.29 +8.29 -27.11 +5.53 -21.48 +6.95 -23.34",
    "RAR": "+2.36 -25.93 +0.02 -22.72 +10.67 -35.96 +11.59 -36.88 +8.84 -26.57 +10.39 -28.15",
}


@pytest.mark.parametrize(("base", "triple"), list(zip(BASES, TRIPLES, strict=True)), ids=BASES)
def test_the_gains_of_the_main_table(base: str, triple: tuple[str, str, str]) -> None:
    table = cells("main")
    found = [
        value(table, triple[2], column, key) - value(table, triple[0], column, key)
        for column in range(6)
        for key in ("acc", "fm")
    ]
    np.testing.assert_allclose(found, [float(g) for g in GAINS[base].split()], atol=1e-9)


def suffixed(ending: str) -> list[tuple[str, ...]]:
    return [tuple(f"{row}, {ending}" for row in triple) for triple in TRIPLES[:2]]


# which row of a group is bold, column by column: first ACC, then FM; a dot where there is no cell
LAST6, LAST2 = ("222222", "222222"), ("22", "22")
TWO_LEVELS = ("single level, L_trn", "single level, L_trn + L_buf", "bi-level")
PARTS = (
    "class-agnostic alone", "single, without class-agnostic",
    "individual, without class-agnostic", "individual and class-agnostic",
)  # fmt: skip
NORMALISED = ["ER", "ER-Dual-CBA", "DER++", "DER-Dual-CBA"]
FROZEN = (*(f"frozen after task {k}" for k in (2, 3, 4, 6, 8)), "never frozen")
BOLD: list[tuple[str, tuple[str, ...], tuple[str, str]]] = [
    ("main", TRIPLES[0], LAST6),
    ("main", TRIPLES[1], ("212222", "222211")),
    ("main", TRIPLES[2], LAST6),
    ("main", TRIPLES[3], ("222222", "222211")),
    *(("semi", rows, LAST6) for r in ("0.2", "0.1") for rows in suffixed(f"ratio {r}")),
    *(("blurry", rows, LAST2) for k in ("10", "30") for rows in suffixed(f"K = {k}")),
    ("offline", TRIPLES[0], ("22", "21")),
    ("offline", TRIPLES[1], LAST2),
    ("offline", TRIPLES[2], ("22", "12")),
    ("offline", TRIPLES[3], LAST2),
    *(
        ("normalisation", tuple(f"{m}, {n}" for n in ("BN", "CN", "AdaB2N", "IBN")), bold)
        for m, bold in zip(NORMALISED, [("33", "22"), ("33", "33")] * 2, strict=True)
    ),
    ("transfer-intra", FROZEN, ("553", "535")),
    ("transfer-inter", ("from CIFAR-10", "no transfer"), (".11", ".11")),
    ("transfer-inter", ("from CIFAR-100", "no transfer"), ("0.1", "0.0")),
    ("transfer-inter", ("from Tiny-ImageNet", "no transfer"), ("00.", "01.")),
    ("bilevel", TWO_LEVELS, LAST2),
    ("architecture", PARTS, ("33", "23")),
    ("small-buffers", TRIPLES[0], ("222222222", "222221122")),
]


@pytest.mark.parametrize(
    ("name", "rows", "bold"), BOLD, ids=[f"{name}-{rows[0]}" for name, rows, _ in BOLD]
)
def test_what_is_bold_is_best(name: str, rows: tuple[str, ...], bold: tuple[str, str]) -> None:
    table = cells(name)
    for key, sign, printed in zip(("acc", "fm"), (1, -1), bold, strict=True):
        for column, which in enumerate(printed):
            if which == ".":
                assert not table[rows[0]][column]
                continue
            have = [i for i, row in enumerate(rows) if table[row][column]]
            best = max(have, key=lambda i: sign * value(table, rows[i], column, key))
            assert best == int(which), (key, column)


def test_every_row_of_the_tables_was_checked_for_bold_type() -> None:
    others = {"iCaRL", "LUCIR", "BiC", "ER-ACE", "SS-IL"}  # no bold type among them
    for name in {name for name, _, _ in BOLD}:
        checked = {row for table, rows, _ in BOLD if table == name for row in rows}
        readings = ", stored once", ", negatives", ", 50 epochs"
        stated = {e.row for e in experiments()[name].entries if e.paper}
        stated = {next((r.removesuffix(s) for s in readings if r.endswith(s)), r) for r in stated}
        assert stated - checked <= others, name


@pytest.mark.parametrize("row", TRIPLES[0])
def test_the_accuracies_of_each_task_average_to_acc(row: str) -> None:
    for column, found in enumerate(cells("per-task")[row]):
        tasks = [v for k, v in found.items() if k.startswith("task") and v is not None]
        assert len(tasks) == (5 if column == 0 else 10)
        assert np.mean(tasks) == pytest.approx(found["acc"], abs=0.0101)  # both are rounded
        assert found["acc"] == cells("main")[row][2 * column]["acc"]
        assert found["acc_auc"] == found["acc_auc_last"]  # one printed number, two readings


def test_numbers_that_stand_in_several_tables_are_the_same() -> None:
    main = cells("main")
    for method in NORMALISED:
        norm = "IBN" if "Dual" in method else "BN"
        assert cells("normalisation")[f"{method}, {norm}"] == main[method][2:4]
    assert cells("bilevel")["bi-level"] == main["ER-Dual-CBA"][2:4]
    assert cells("transfer-inter")["no transfer"] == main["ER-Dual-CBA"][::2]
    # the individual parts: the same in two tables, and not what the main table has
    both = cells("architecture")[PARTS[3]][0], cells("transfer-intra")["never frozen"][1]
    assert both[0] == both[1] == {"acc": 29.81, "fm": 9.95}
    assert main["ER-Dual-CBA"][2] == {"acc": 29.14, "fm": 8.90}


def test_numbers_that_the_text_repeats() -> None:
    main, norms = cells("main"), cells("normalisation")
    cba = value(main, "ER-CBA", 0, "acc") - value(main, "ER", 0, "acc")
    assert cba == pytest.approx(1.77)
    less = value(main, "ER", 0, "fm") - value(main, "ER-CBA", 0, "fm")
    assert less == pytest.approx(5.87)  # the text says 5.84
    for method, gain in (("DER++", 1.42), ("DER-Dual-CBA", 3.88)):
        found = [value(norms, f"{method}, {n}", 1, "acc") for n in ("BN", "IBN")]
        assert found[1] - found[0] == pytest.approx(gain)


def test_where_the_paper_contradicts_itself() -> None:
    icarl = pairs("main", "iCaRL")
    assert (icarl[2][0], icarl[4][0]) == (icarl[3][0], icarl[5][0]) == (9.13, 4.03)
    row = pairs("semi", "DER-Dual-CBA, ratio 0.2")
    assert row[1][1] == row[2][1] == 9.54
    assert pairs("normalisation", "ER-Dual-CBA, BN")[0][0] == 25.29 < 25.56
    cost = cells("computation")
    assert cost["ER-CBA"][0]["parameters"] == cost["ER-Dual-CBA"][0]["parameters"] == 11.179


# ---------------------------------------------------------------- the form of the catalogue

COUNTS = {
    "main": 204, "semi": 144, "blurry": 48, "offline": 48, "per-task": 3 * (8 + 13 + 13),
    "normalisation": 64, "transfer-intra": 28, "transfer-inter": 18, "bilevel": 12,
    "architecture": 16, "small-buffers": 54, "computation": 9,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_values(name: str) -> None:
    counted = [e for e in experiments()[name].entries if e.counted]
    values = [v for e in counted for v in e.paper.values() if v is not None]
    assert len(values) == COUNTS.get(name, 0)
    assert all(isinstance(v, float | int) and np.isfinite(v) for v in values)


def test_two_readings_of_a_row_have_the_same_values_and_one_is_counted() -> None:
    entries = {(e.row, e.column): e for e in experiments()["semi"].entries}
    for (row, column), entry in entries.items():
        if not row.endswith(", stored once"):
            other = entries[f"{row}, stored once", column]
            assert entry.paper == other.paper
            assert entry.counted != other.counted


@pytest.mark.parametrize("name", [*NAMES, *READINGS])
def test_the_form(name: str) -> None:
    one = experiments()[name]
    assert isinstance(one, Experiment)
    assert (one.name, one.kind) == (name, "figure" if one.figures else "table")
    assert one.title
    assert one.note.endswith(".")
    assert len({(e.row, e.column) for e in one.entries}) == len(one.entries)
    for entry in one.entries:
        assert entry.statistics in ("bn", "ibn")
        assert set(entry.paper) <= set(one.scores)
        assert "seed" not in entry.given


@pytest.mark.parametrize("name", [*NAMES, *READINGS])
def test_every_spec_can_be_run(name: str) -> None:
    for entry in experiments()[name].entries:
        assert entry.spec.dataset == entry.given["dataset"]
        assert f"M = {entry.spec.buffer}" in entry.column


def test_the_statistics_that_a_value_belongs_to() -> None:
    def used(name: str, row: str) -> set[str]:
        return {e.statistics for e in experiments()[name].entries if e.row == row}

    assert used("main", "ER-Dual-CBA") == used("bilevel", TWO_LEVELS[0]) == {"ibn"}
    assert used("main", "ER") == used("main", "ER-CBA") == {"bn"}
    bn = used("normalisation", "ER-Dual-CBA, CN")
    assert bn == used("controls", "RAR-Dual-CBA, BN") == {"bn"}
    assert used("normalisation", "ER, IBN") == used("controls", "ER-CBA, IBN") == {"ibn"}
    assert all(e.statistics == "ibn" for e in experiments()["architecture"].entries)


def test_exchanged_tasks() -> None:
    shift = experiments()["feature-shift"]
    orders = [e.spec.class_order for e in shift.entries]
    assert orders == ["natural", [0, 1, 2, 3, 4, 5, 8, 9, 6, 7]]


def test_an_unknown_name() -> None:
    assert [e.name for e in named("all")] == list(NAMES)
    with pytest.raises(ValueError, match=r"unknown experiment 'mian', did you mean 'main'\?"):
        named("mian")


def test_equal_entries_share_one_spec() -> None:
    main, norms = experiments()["main"], experiments()["normalisation"]
    entry = next(e for e in main.entries if (e.row, e.column) == ("ER", "CIFAR-100, M = 2000"))
    same = [e for e in norms.entries if e.given == entry.given]
    assert same
    assert all(e.spec is entry.spec for e in same)
    assert entry.spec == Spec(method="er", dataset="cifar100", buffer=2000, eval_every=0)
    assert entry.fields == entry.spec.to_dict()


def test_an_entry_of_an_unknown_method_has_the_fields_that_it_gives() -> None:
    given = {"method": "theirs", "dataset": "digits"}
    assert Entry("row", "column", given, "bn", {}).fields == given


def test_where_a_class_agnostic_part_comes_from() -> None:
    donors = {e.row: e.donor for e in experiments()["transfer-inter"].entries}
    assert (donors["no transfer"], donors["from CIFAR-100, alone"]) == (None, "cifar100")
    for entry in (e for one in named("all") for e in one.entries if e.donor):
        assert "agnostic_from" not in entry.given
        assert entry.given["specific"] in ("individual", "none")  # it would depend on the file
        assert entry.source is not None
        assert (entry.source.dataset, entry.source.method) == (entry.donor, "er-dual-cba")
        assert entry.spec.agnostic_from is None


def test_a_divided_part_comes_from_a_run_that_divides() -> None:
    entries = [e for e in experiments()["readings-settings"].entries if e.donor]
    assert {bool(e.given.get("divide")) for e in entries} == {True, False}
    for entry in entries:
        assert entry.source is not None
        assert entry.source.divide == entry.spec.divide
        assert entry.source.dataset != entry.spec.dataset
