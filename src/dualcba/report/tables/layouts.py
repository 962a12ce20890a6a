"""Tables of scores and gains for a terminal, in several layouts from wide to narrow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from dualcba.report.comparison import Cell, Row
from dualcba.report.gains import Gain
from dualcba.report.names import STATISTICS, score_info
from dualcba.report.tables.model import Column, Table, number, p_value, short_spread, text_columns
from dualcba.report.tables.scores import WIDE

Layout = Callable[[Sequence[Row], Sequence[str]], Table]


def score_layouts(found: Sequence[Row]) -> Iterator[list[Table]]:
    """Yield layouts of the scores of rows, widest first, each with one or more tables.

    With more than `WIDE` scores, BN, IBN and the paper's values are lines instead of columns.
    """
    scores = [cell.score for cell in found[0].cells]
    layouts: list[Layout] = [columns_layout] if len(scores) <= WIDE else []
    layouts.append(lines_layout)
    for layout, part in itertools.product(layouts, portions(scores)):
        yield [layout(found, some) for some in part]


def portions(scores: Sequence[str]) -> Iterator[list[Sequence[str]]]:
    """Yield the scores split into one part, two parts, and so on.

    >>> list(portions(["acc", "fm", "acc_auc"]))
    [[['acc', 'fm', 'acc_auc']], [['acc', 'fm'], ['acc_auc']], [['acc'], ['fm'], ['acc_auc']]]
    """
    n = len(scores)
    for size in (math.ceil(n / parts) for parts in range(1, n + 1)):
        yield [scores[k : k + size] for k in range(0, n, size)]


def columns_layout(found: Sequence[Row], scores: Sequence[str]) -> Table:
    """Return a table with columns for BN, IBN, the paper's value and Δ of each score."""
    paper = _compared(found)
    columns = [*text_columns("", *[""] * paper)]
    for name in scores:
        ours = ["ours"] if score_info(name).fixed else list(STATISTICS.values())
        parts = [*ours, *([found[0].beside, "Δ"] if paper else [])]
        columns += [Column(part, score_info(name).arrowed) for part in parts]
    lines = []
    for row in found:
        texts = [STATISTICS[row.statistics]] if paper else []
        for cell in _cells(row, scores):
            measured = [cell.ours] if score_info(cell.score).fixed else [cell.bn, cell.ibn]
            texts += [short_spread(m, score_info(cell.score).digits) for m in measured]
            texts += [_paper(cell), _difference(cell)] if paper else []
        lines.append((row.row, *texts))
    return Table("", tuple(columns), tuple(lines))


def lines_layout(found: Sequence[Row], scores: Sequence[str]) -> Table:
    """Return a table with lines for BN, IBN, the paper's value and Δ of each row."""
    columns = (*text_columns("", ""), *(Column(score_info(name).arrowed) for name in scores))
    paper, rows = _compared(found), []
    for row in found:
        for k, (name, texts) in enumerate(_lines(row, scores, paper)):
            rows.append(("" if k else row.row, name, *texts))
    return Table("", columns, tuple(rows))


def _lines(row: Row, scores: Sequence[str], paper: bool) -> list[tuple[str, list[str]]]:
    cells = _cells(row, scores)
    lines = [("BN", [short_spread(c.bn, score_info(c.score).digits) for c in cells])]
    lines += [("IBN", [short_spread(c.ibn, score_info(c.score).digits) for c in cells])]
    if all(score_info(name).fixed for name in scores):
        lines = [("ours", lines[0][1])]
    if paper:
        name = f"{row.beside}, {STATISTICS[row.statistics]}"
        lines += [(name, [_paper(c) for c in cells]), ("Δ", [_difference(c) for c in cells])]
    return lines


def _compared(found: Sequence[Row]) -> bool:
    return any(c.paper is not None for row in found for c in row.cells)


def _cells(row: Row, scores: Sequence[str]) -> list[Cell]:
    return [cell for cell in row.cells if cell.score in scores]


def _paper(cell: Cell) -> str:
    info = score_info(cell.score)
    return number(cell.paper, info.digits if info.fixed else 2)


def _difference(cell: Cell) -> str:
    return number(cell.difference, score_info(cell.score).digits, sign=True)


def short_gain_table(found: Sequence[Gain]) -> Table:
    """Return a table of each adaptor's gain over its base, with p, and the part due to IBN."""
    info = score_info(found[0].score)
    columns = (
        *text_columns(f"gain in {info.title}"),
        Column("base, BN", "IBN over"), Column("p"), Column("alone", "due to IBN"),
        Column("base, IBN", "IBN over"), Column("p"),
    )  # fmt: skip
    lines = []
    for g in found:
        gaps = (g.whole, g.ibn, g.adaptors)
        whole, ibn, own = (short_spread(gap, info.digits, sign=True) for gap in gaps)
        lines.append((g.pair, whole, p_value(g.whole.p), ibn, own, p_value(g.adaptors.p)))
    return Table("", columns, tuple(lines))
