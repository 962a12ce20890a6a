"""Tables of an experiment's scores and gains, for files and pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dualcba.report.comparison import NEWEST, Cell, Row, Served, further, known, measured, rows
from dualcba.report.gains import Gain, Gap, known_gains
from dualcba.report.names import MISSING, STATISTICS, score_info
from dualcba.report.pairs import Paired
from dualcba.report.tables.model import Column, Strong, Table, number, p_value, spread, text_columns

WIDE = 3
"""With more scores, a table shows only our value and the paper's; the CSV has all."""

PAGE = 5
"""The largest number of scores in a table; more are split over several tables."""

GAIN_NOTE = (
    "Mean gain over common seeds ± 95 % interval. The gain over the base with BN is the paper’s "
    "comparison. It is the sum of the gain due to IBN alone (base with IBN minus base with BN) and "
    "the gain of the adaptor (both with IBN). p: paired t test, bold if below 0.05."
)


PAIR_NOTE = (
    "Mean difference over common seeds ± 95 % interval. p: paired t test, bold if below 0.05; not "
    "corrected for multiple comparisons: if no methods differ, one test in twenty has p < 0.05 by "
    "chance."
)


def with_gains(served: Sequence[Served], scores: Sequence[str]) -> tuple[list[Table], list[Gain]]:
    """Return the tables of scores, newest task and gains of each column, and all gains."""
    tables, found = [], []
    for column in dict.fromkeys(s.entry.column for s in served):
        part = [s for s in served if s.entry.column == column]
        here = column_gains(part, scores)
        tables += blocks(known(rows(part, scores)))
        tables += newest_tables(part, column)
        tables += [gain_table(here, column)] if here else []
        found += here
    if found:
        tables[-1] = dataclasses.replace(tables[-1], note=GAIN_NOTE)
    return tables, found


def column_gains(served: Sequence[Served], scores: Sequence[str]) -> list[Gain]:
    """Return the known gains in ACC if ACC is among the scores."""
    return known_gains(served) if "acc" in scores else []


# ---------------------------------------------------------------------- scores


def blocks(found: Sequence[Row]) -> list[Table]:
    """Return one table per column of the experiment, with the paper's values if there are any."""
    tables = []
    for name in dict.fromkeys(row.column for row in found):
        here = [r for r in found if r.column == name]
        wide = len(here[0].cells) > WIDE
        parts = _parts(here) if wide else [here]
        for k, part in enumerate(parts, 1):
            of = f", part {k} of {len(parts)}" if len(parts) > 1 else ""
            tables.append(_block(name + of, part, wide=wide))
    return tables


def _parts(found: list[Row]) -> list[list[Row]]:
    """Split the scores of rows into parts that fit a page."""
    starts = range(0, len(found[0].cells), PAGE)
    return [[dataclasses.replace(r, cells=r.cells[k : k + PAGE]) for r in found] for k in starts]


def _block(title: str, rows: list[Row], *, wide: bool) -> Table:
    paper = any(c.paper is not None for row in rows for c in row.cells)
    columns = [*text_columns("method"), Column("seeds")]
    columns += text_columns("statistics") if paper else ()
    for name in (c.score for c in rows[0].cells):
        parts = ["ours"] if (wide and paper) or score_info(name).fixed else ["BN", "IBN"]
        parts += [rows[0].beside] * paper + ["Δ"] * (paper and not wide)
        columns += [Column(part, score_info(name).arrowed) for part in parts]
    lines = []
    for row in rows:
        line = [row.row, str(len(row.seeds) or MISSING)]
        line += [STATISTICS[row.statistics]] if paper else []
        line += [text for cell in row.cells for text in _texts(cell, paper, wide)]
        lines.append(tuple(line))
    return Table(title, tuple(columns), tuple(lines))


def _texts(cell: Cell, paper: bool, wide: bool) -> list[str]:
    info = score_info(cell.score)
    far = Strong if cell.within is False else str
    if wide and paper:
        return [far(spread(cell.ours, info.digits)), number(cell.paper, 2)]
    ours = [cell.ours] if info.fixed else [cell.bn, cell.ibn]
    texts = [spread(m, info.digits) for m in ours]
    gap = number(cell.difference, info.digits, sign=True)
    given = number(cell.paper, info.digits if info.fixed else 2)
    return [*texts, given, far(gap)] if paper else texts


def newest_tables(served: Sequence[Served], where: str) -> list[Table]:
    """Return a table of the scores of the newest task, if any result has them."""
    scores = measured(served, NEWEST)
    title = f"{where}: the newest task"
    found = [dataclasses.replace(row, column=title) for row in rows(served, scores)]
    return blocks(found) if scores else []


def further_tables(served: Sequence[Served], where: str, asked: Sequence[str] = ()) -> list[Table]:
    """Return a table of requested scores and of scores that apply to some streams only, if any."""
    scores = further(served, asked)
    title = f"{where}: further scores"
    found = [dataclasses.replace(row, column=title) for row in rows(served, scores)]
    return blocks(found) if scores else []


# ---------------------------------------------------------------------- differences seed by seed


def gain_table(found: Sequence[Gain], where: str) -> Table:
    """Return a table of each adaptor's gains over its base, with intervals and p values."""
    whole, adaptors = "IBN over base BN", "IBN over base IBN"
    columns = (
        Column("adaptor over base", number=False), Column("seeds"),
        Column("gain", whole), Column("p", whole), Column("gain", "due to IBN alone"),
        Column("gain", adaptors), Column("p", adaptors),
        Column("gain", "both BN"), Column("p", "both BN"),
    )  # fmt: skip
    lines = []
    for g in found:
        parts = [*_gap(g.whole), spread(g.ibn, sign=True), *_gap(g.adaptors), *_gap(g.bn)]
        lines.append((g.pair, str(g.adaptors.seeds or MISSING), *parts))
    return Table(f"Gain in {score_info(found[0].score).title}, {where}", columns, tuple(lines))


def pair_table(found: Sequence[Paired], where: str) -> Table:
    """Return a table of the differences of every two methods, with intervals and p values."""
    info = score_info(found[0].score)
    heads = [Column(part, group) for group in STATISTICS.values() for part in ("difference", "p")]
    lines = []
    for pair in found:
        gaps = [*_gap(pair.bn, info.digits), *_gap(pair.ibn, info.digits)]
        lines.append((pair.title, str(pair.seeds), *gaps))
    columns = (*text_columns("methods"), Column("seeds"), *heads)
    return Table(f"Difference in {info.arrowed}, {where}", columns, tuple(lines), PAIR_NOTE)


def _gap(gap: Gap, digits: int = 1) -> list[str]:
    return [spread(gap, digits, sign=True), p_value(gap.p)]
