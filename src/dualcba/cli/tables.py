"""The terminal's tables of an experiment: ours under BN and IBN beside the paper's values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dualcba.evaluation import STATISTICS
from dualcba.experiments.paper.catalogue import Experiment
from dualcba.report.comparison import Cell, Measure, Result, Row, Served, known, rows, serve
from dualcba.report.gains import Gain, Gap, gains, in_one_line
from dualcba.report.names import MISSING, score, seeds
from dualcba.report.tables import number, p_value

WIDE = 3
"""With more scores than these, a row has a line for each normalisation instead of a column."""

CAPTION = "mean ± 95 % interval over {seeds}"
BESIDE = "; Δ is ours minus the paper's, under the normalisation that is named"
SMALL = "; handwritten digits: the paper's values do not apply"
GAIN = "gain over the base, seed by seed; p of a paired t test"


def wide_console() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need be."""
    console = Console()
    given = console.is_terminal or os.environ.get("COLUMNS")
    return console if given else Console(width=220)


def show(
    experiment: Experiment, results: Sequence[Result], console: Console, *, small: bool
) -> None:
    """One table per column of the experiment, with the rows that have results."""
    found: list[Gain] = []
    served = [s for s in serve(experiment, results) if s.results]
    for column in dict.fromkeys(s.entry.column for s in served):
        part = [s for s in served if s.entry.column == column]
        console.print(Text(f"{experiment.title}, {column}", style="bold"))
        for table in _fitting(known(rows(part, experiment.scores)), console):
            console.print(table)
        here = [g for g in gains(part) if g.adaptors.seeds] if "acc" in experiment.scores else []
        if here:
            console.print(gain_table(here))
        found += here
        console.print(Text(_caption(part, here, small=small) + "\n", style="dim"))
    if found:
        console.print(Text(f"{experiment.title}. {in_one_line(found)}\n"))


def _caption(served: list[Served], found: list[Gain], *, small: bool) -> str:
    over = seeds(*(len(s.results) for s in served))
    beside = BESIDE if any(s.entry.paper for s in served) else ""
    return CAPTION.format(seeds=over) + beside + (f"; {GAIN}" * bool(found)) + SMALL * small


# ---------------------------------------------------------------------- scores

Layout = Callable[[Sequence[Row], Sequence[str]], Table]


def _fitting(found: Sequence[Row], console: Console) -> list[Table]:
    """The widest way to lay out a table for which there is room."""
    scores = [cell.score for cell in found[0].cells]
    n = len(scores)
    sizes = [math.ceil(n / parts) for parts in range(1, n + 1)]
    layouts: list[Layout] = [_wide, _long] if n <= WIDE else [_long]
    for layout, size in itertools.product(layouts, sizes):
        tables = [layout(found, scores[k : k + size]) for k in range(0, n, size)]
        if all(_width(table, console) <= console.width for table in tables):
            break
    return tables


def _width(table: RenderableType, console: Console) -> int:
    room = console.options.update(width=1000)
    return Measurement.get(console, room, table).minimum


def _table(title: str = "") -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(title, min_width=16)
    return table


def _compared(found: Sequence[Row]) -> bool:
    return any(c.paper is not None for row in found for c in row.cells)


def _cells(row: Row, scores: Sequence[str]) -> list[Cell]:
    return [cell for cell in row.cells if cell.score in scores]


def _wide(found: Sequence[Row], scores: Sequence[str]) -> Table:
    table, compared = _table(), _compared(found)
    if compared:
        table.add_column("", no_wrap=True)
    for name in scores:
        ours = ["ours"] if score(name).cost else [norm.upper() for norm in STATISTICS]
        for part in [*ours, *(["paper", "Δ"] if compared else [])]:
            _score_column(table, name, f"\n{part}")
    for row in found:
        texts = [row.norm.upper()] if compared else []
        for cell in _cells(row, scores):
            measured = [cell.ours] if score(cell.score).cost else [cell.bn, cell.ibn]
            texts += [_spread(m, cell.score) for m in measured]
            texts += [_paper(cell), _difference(cell)] if compared else []
        table.add_row(row.row, *texts)
    return table


def _long(found: Sequence[Row], scores: Sequence[str]) -> Table:
    table, compared = _table(), _compared(found)
    table.add_column("", no_wrap=True)
    for name in scores:
        _score_column(table, name)
    for row in found:
        cells = _cells(row, scores)
        lines = [("BN", [_spread(c.bn, c.score) for c in cells])]
        lines += [("IBN", [_spread(c.ibn, c.score) for c in cells])]
        if all(score(name).cost for name in scores):
            lines = [("ours", lines[0][1])]
        if compared:
            lines += [(f"paper, {row.norm.upper()}", [_paper(c) for c in cells])]
            lines += [("Δ", [_difference(c) for c in cells])]
        for k, (name, texts) in enumerate(lines):
            table.add_row("" if k else row.row, name, *texts)
    return table


def _score_column(table: Table, name: str, part: str = "") -> None:
    title = score(name).arrowed  # of several words, and yet not to be cut
    table.add_column(title + part, justify="right", no_wrap=True, min_width=len(title))


def _spread(m: Measure | Gap | None, name: str, *, sign: bool = False) -> str:
    if m is None:
        return MISSING
    digits = score(name).digits
    mean = number(m.mean, digits, sign=sign)
    return mean if m.half is None else f"{mean}±{m.half:.{digits}f}"


def _paper(cell: Cell) -> str:
    return number(cell.paper, score(cell.score).digits if score(cell.score).cost else 2)


def _difference(cell: Cell) -> str:
    return number(cell.difference, score(cell.score).digits, sign=True)


# ---------------------------------------------------------------------- gains


def gain_table(found: Sequence[Gain]) -> Table:
    """What each Dual-CBA gains over its base method, with p, and how much of that IBN gives."""
    name = found[0].score
    table = _table(f"gain in {score(name).title}")
    for title in ("IBN over\nbase, BN", "\np", "of it\nIBN's", "IBN over\nbase, IBN", "\np"):
        table.add_column(title, justify="right", no_wrap=True)
    for g in found:
        whole, ibn, own = (_spread(part, name, sign=True) for part in (g.whole, g.ibn, g.adaptors))
        table.add_row(g.pair, whole, p_value(g.whole.p), ibn, own, p_value(g.adaptors.p))
    return table


# ---------------------------------------------------------------------- for scripts


def as_data(experiment: Experiment, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The same for `--json`: each entry with its means and half-widths."""
    served = serve(experiment, results)
    found = {(g.dual, g.column): g for g in gains(served)} if "acc" in experiment.scores else {}
    out = []
    for one, row in zip(served, rows(served, experiment.scores), strict=True):
        ours: dict[str, dict[str, Any]] = {norm: {} for norm in STATISTICS}
        for cell in row.cells:
            for norm, m in (("bn", cell.bn), ("ibn", cell.ibn)):
                ours[norm][cell.score] = None if m is None else (m.mean, m.half)
        head = {"row": row.row, "column": row.column, "norm": row.norm, "paper": one.entry.paper}
        data = head | {"seeds": list(row.seeds), "ours": ours}
        if gain := found.get((row.row, row.column)):
            data["gain"] = dataclasses.asdict(gain)
        out.append(data)
    return out
