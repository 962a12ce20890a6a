"""The same rows in four formats: aligned, escaped, a dash for what is missing."""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import StringIO
from xml.etree import ElementTree

import pytest

from dualcba.experiments import Result, Spec
from dualcba.experiments.paper.catalogue import Entry, Experiment
from dualcba.report.comparison import Cell, Measure, Row, Served, compare, serve
from dualcba.report.gains import Gain, Gap
from dualcba.report.tables.csv import comma_separated, gain_records, score_records
from dualcba.report.tables.html import html_table
from dualcba.report.tables.latex import escape as escape_latex
from dualcba.report.tables.latex import latex
from dualcba.report.tables.markdown import markdown
from dualcba.report.tables.model import Column, Strong, Table, p_value
from dualcba.report.tables.scores import blocks, gain_table, with_gains

NASTY = 'a & b_1 | <script>alert("x")</script> 50 % #1 {z} ~ ^ \\ $'


@pytest.fixture
def rows() -> list[Row]:
    near = Cell("acc", "bn", Measure(22.0, 1.25, 3), Measure(24.0, 11.0, 3), 21.66)
    far = Cell("acc", "bn", Measure(32.3, 1.7, 3), None, 8.28)
    return [
        Row("ER", "CIFAR-100, M = 2000", "bn", (0, 1, 2), (near,)),
        Row("LUCIR", "CIFAR-100, M = 2000", "bn", (0, 1, 2), (far,)),
        Row("ER", "CIFAR-10", "bn", (), (Cell("acc", "bn", None, None, 36.36),)),
    ]


def test_one_table_per_column_with_the_paper_and_the_difference(rows: list[Row]) -> None:
    first, second = blocks(rows)
    assert [c.title for c in first.columns] == [
        "method",
        "seeds",
        "statistics",
        "BN",
        "IBN",
        "paper",
        "Δ",
    ]
    assert first.rows[0] == ("ER", "3", "BN", "22.0 ± \u20071.2", "24.0 ± 11.0", "21.66", "+0.3")
    assert first.rows[1][-1] == "+24.0"
    assert isinstance(first.rows[1][-1], Strong)
    assert not isinstance(first.rows[0][-1], Strong)
    assert second.rows[0] == ("ER", "–", "BN", "–", "–", "36.36", "–")


def test_many_scores_stand_in_several_tables() -> None:
    def row(count: int) -> Row:
        cells = [Cell(f"task{k}", "bn", Measure(k, 1.0, 3), None, 9.0) for k in range(1, count + 1)]
        return Row("ER", "CIFAR-100", "bn", (0, 1, 2), tuple(cells))

    tables = blocks([row(13)])
    assert [t.title for t in tables] == [f"CIFAR-100, part {k} of 3" for k in (1, 2, 3)]
    assert [len(t.columns) for t in tables] == [13, 13, 9]
    assert [c.title for c in tables[2].columns[3:5]] == ["ours", "paper"]
    assert [t.title for t in blocks([row(4)])] == ["CIFAR-100"]


def test_without_a_paper_there_is_no_column_for_it(rows: list[Row]) -> None:
    cells = [Cell("acc", "bn", Measure(22.0, None, 1), None, None)]
    (table,) = blocks([Row("mine", "here", "bn", (0,), tuple(cells))])
    assert [c.title for c in table.columns] == ["method", "seeds", "BN", "IBN"]
    assert table.rows == (("mine", "1", "22.0", "–"),)


def test_three_scores_still_show_both_statistics() -> None:
    cells = tuple(Cell(s, "bn", Measure(1.0, None, 1), None, 2.0) for s in ("acc", "fm", "acc_auc"))
    (table,) = blocks([Row("ER", "here", "bn", (0,), cells)])
    assert [c.title for c in table.columns].count("IBN") == 3


def test_what_has_no_common_seed_has_no_gain() -> None:
    served = [
        Served(Entry(m, "here", {"method": m}, "bn", {}), (Result(Spec(method=m), k, scored),))
        for k, m in enumerate(("er", "er-dual-cba"))
        for scored in [{"bn": {"acc": 20.0}, "ibn": {"acc": 21.0}}]
    ]
    tables, gains = with_gains(served, ["acc"])
    assert (len(tables), gains) == (1, [])


def test_a_p_of_a_twentieth_does_not_stand_out() -> None:
    assert [isinstance(p_value(p), Strong) for p in (0.0499, 0.05)] == [True, False]


def test_many_scores_show_ours_and_the_papers() -> None:
    cells = tuple(Cell(f"task{k}", "bn", Measure(10.0, 1.0, 2), None, 9.0) for k in range(1, 6))
    (table,) = blocks([Row("ER", "here", "bn", (0, 1), cells)])
    assert [c.title for c in table.columns[3:5]] == ["ours", "paper"]
    assert table.columns[3].group == "task 1 ↑"
    assert len(table.columns) == 3 + 10


def test_csv_has_full_numbers_and_empty_fields(rows: list[Row]) -> None:
    lines = list(csv.DictReader(StringIO(comma_separated(score_records(rows)))))
    assert len(lines) == 3
    assert (lines[0]["bn_half"], lines[0]["paper"], lines[0]["within"]) == ("1.25", "21.66", "True")
    assert (lines[1]["ibn_mean"], lines[1]["within"]) == ("", "False")
    assert (lines[2]["bn_mean"], lines[2]["difference"]) == ("", "")


def test_markdown_is_aligned_in_the_source(rows: list[Row]) -> None:
    table = blocks(rows)[0]
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert "| **+24.0** |" in lines[-1]
    assert lines[1].count("-:") == 5


def test_latex_has_booktabs_and_balanced_columns(rows: list[Row]) -> None:
    text = latex(blocks(rows)[0])
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\cmidrule(lr){4-7}"):
        assert part in text
    line = next(line for line in text.splitlines() if line.startswith("ER "))
    assert line.count("&") == 6
    assert r"22.0 $\pm$ \phantom{0}1.2" in line
    assert r"\textbf{+24.0}" in text


def test_every_format_escapes() -> None:
    table = Table(
        NASTY, (Column(NASTY, number=False), Column("n")), ((NASTY, Strong("<1")),), NASTY
    )
    page = html_table(table)
    ElementTree.fromstring(f"<div>{page}</div>")
    assert "<script" not in page
    assert "<strong>&lt;1</strong>" in page
    assert "<script" not in markdown(table)
    assert r"\|" in markdown(table)
    assert escape_latex("a_b & 5 %") == r"a\_b \& 5 \%"
    assert escape_latex("\\{}") == r"\textbackslash{}\{\}"
    assert escape_latex("[1]*") == "{[}1]{*}"
    assert escape_latex("α ≤ 2|Ω") == r"$\alpha$ $\leq$ 2\textbar{}$\Omega$"


def test_html_says_what_each_heading_heads(rows: list[Row]) -> None:
    tree = ElementTree.fromstring(f"<div>{html_table(blocks(rows)[0])}</div>")
    scopes = [th.get("scope") for th in tree.iter("th")]
    assert scopes == ["colgroup", *["col"] * 7, "row", "row"]
    assert tree.find(".//caption/span").text == "CIFAR-100, M = 2000"  # type: ignore[union-attr]


@pytest.fixture
def gain() -> Gain:
    gaps = Gap(3, 9.0, 2.0, 0.0004), Gap(3, 4.0, 12.0, 0.3), Gap(1, -5.0, None, None)
    return Gain("ER", "ER-Dual-CBA", "here", "acc", *gaps, gaps[0])


def test_gains_as_a_table(gain: Gain) -> None:
    table = gain_table([gain], "here")
    assert table.title == "Gain in ACC, here"
    (row,) = table.rows
    assert row == ("ER-Dual-CBA over ER", "1", "+9.0 ± \u20072.0", "< 0.001", "+4.0 ± 12.0",
                   "−5.0", "–", "+9.0 ± \u20072.0", "< 0.001")  # fmt: skip
    assert isinstance(row[3], Strong)
    assert not isinstance(row[6], Strong)
    assert comma_separated(gain_records([gain])).splitlines()[1] == (
        "ER-Dual-CBA,ER,here,acc,1,9.0,2.0,0.0004,4.0,12.0,0.3,-5.0,,,9.0,2.0,0.0004"
    )


def test_gains_stand_below_the_scores_of_their_column(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    tables, found = with_gains(serve(experiment(), results), ["acc", "fm"])
    assert [t.title for t in tables] == [
        "Digits, M = 100", "Digits, M = 100: the newest task", "Gain in ACC, Digits, M = 100",
        "Digits, M = 50",
    ]  # fmt: skip
    assert [(g.dual, g.base) for g in found] == [("ER-Dual-CBA", "ER")]
    assert sum(bool(t.note) for t in tables) == 1


def test_a_cost_has_no_statistics_and_its_digits(rows: list[Row]) -> None:
    same = Measure(0.0816, 0.0, 3)
    cells = (Cell("parameters", "ibn", same, same, 11.179),)
    (table,) = blocks([Row("ER", "here", "ibn", (0, 1, 2), cells)])
    assert [(c.group, c.title) for c in table.columns[3:]] == [
        ("parameters, M ↓", "ours"), ("parameters, M ↓", "paper"), ("parameters, M ↓", "Δ")
    ]  # fmt: skip
    assert table.rows[0][3:] == ("0.082 ± \u20070.000", "11.179", "−11.097")
    assert not isinstance(table.rows[0][-1], Strong)
    megabytes = (Cell("gpu_memory", "bn", Measure(5651.6, 27.3, 3), None, 1072.0),)
    (table,) = blocks([Row("ER", "here", "bn", (0, 1, 2), megabytes)])
    assert table.rows[0][3:] == ("5652 ± \u200727", "1072", "+4580")


def test_real_runs_fill_a_table(
    experiment: Callable[..., Experiment], results: list[Result]
) -> None:
    first, second = blocks(compare(experiment(), results))
    assert all("±" in row[3] for row in first.rows)
    assert set(second.rows[0][1:]) == {"–"}
