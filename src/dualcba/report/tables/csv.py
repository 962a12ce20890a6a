"""Tables as comma-separated values with full precision, for other programs."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from io import StringIO

from dualcba.experiments.result import Result
from dualcba.report.comparison import Measure, Row, Served, relative_time
from dualcba.report.gains import Gain
from dualcba.report.names import STATISTICS
from dualcba.report.pairs import Paired
from dualcba.report.tables.model import Table, fields, text_columns


def comma_separated(table: Table) -> str:
    """Return a table as CSV: a line of titles, then its rows."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows(table.rows)
    return out.getvalue()


def score_records(rows: Sequence[Row]) -> Table:
    """Return a table with a line per row and score; unknown values are empty."""
    parts = [f"{statistics}_{part}" for statistics in STATISTICS for part in _PARTS]
    beside = rows[0].beside if rows else "paper"
    tail = (f"{beside}_norm", beside, "difference", "within")
    lines = []
    for row in rows:
        for cell in row.cells:
            ours = [x for m in (cell.bn, cell.ibn) for x in _numbers(m)]
            paper = [row.statistics, cell.paper, cell.difference, cell.within]
            lines.append(fields([row.row, row.column, cell.score, *ours, *paper]))
    return Table("", text_columns("row", "column", "score", *parts, *tail), tuple(lines))


def seed_records(served: Iterable[Served], scores: Sequence[str]) -> Table:
    """Return a table with a line per run and score, under BN and under IBN."""
    served = list(served)
    lines = [
        fields([s.entry.row, s.entry.column, r.seed, score, *_of_run(s, r, score, served)])
        for s in served
        for r in s.results
        for score in scores
    ]
    return Table("", text_columns("row", "column", "seed", "score", *STATISTICS), tuple(lines))


def _of_run(
    served: Served, result: Result, score: str, others: Sequence[Served]
) -> list[float | None]:
    """Return a score of one run under BN and under IBN."""
    if score == "relative_time":
        found = relative_time(dataclasses.replace(served, results=(result,)), others)
        return [None if found is None else found.mean] * len(STATISTICS)
    return [result.value(statistics, score) for statistics in STATISTICS]


_PARTS = ("mean", "half", "seeds")


def _numbers(m: Measure | None) -> tuple[float | None, float | None, int]:
    return (None, None, 0) if m is None else (m.mean, m.half, m.seeds)


def gain_records(found: Iterable[Gain]) -> Table:
    """Return a table with a line per adaptor and base; unknown values are empty."""
    parts = ("whole", "ibn", "adaptors", "bn")
    heads = [f"{part}_{number}" for part in parts for number in ("mean", "half", "p")]
    lines = []
    for g in found:
        numbers = [x for part in parts for x in dataclasses.astuple(getattr(g, part))[1:]]
        lines.append(fields([g.dual, g.base, g.column, g.score, g.adaptors.seeds, *numbers]))
    return Table("", text_columns("dual", "base", "column", "score", "seeds", *heads), tuple(lines))


def pair_records(found: Iterable[Paired]) -> Table:
    """Return a table with a line per pair of methods; unknown values are empty."""
    heads = [f"{s}_{number}" for s in STATISTICS for number in ("mean", "half", "p")]
    lines = []
    for pair in found:
        numbers = [x for gap in (pair.bn, pair.ibn) for x in dataclasses.astuple(gap)[1:]]
        names = [pair.first, pair.second, pair.column, pair.score, pair.seeds]
        lines.append(fields([*names, *numbers]))
    columns = text_columns("first", "second", "column", "score", "seeds", *heads)
    return Table("", columns, tuple(lines))
