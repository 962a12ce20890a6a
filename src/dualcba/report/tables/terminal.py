"""Tables in a terminal, rendered by rich."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.paper.selection import WHOSE
from dualcba.experiments.result import Result
from dualcba.report.comparison import NEWEST, Served, known, measured, rows, serve
from dualcba.report.gains import Gain, in_one_line
from dualcba.report.names import spread_over
from dualcba.report.tables.layouts import score_layouts, short_gain_table
from dualcba.report.tables.model import Table
from dualcba.report.tables.scores import column_gains
from dualcba.report.tables.summary import summary_layouts

NAME_WIDTH = 16
"""Smallest width of the column with the names of rows, in characters."""

WIDTH = 220
"""Width of an output that is not a terminal, in characters."""

BESIDE = "; Δ is our value minus {what}, with the statistics (BN or IBN) of the row"
VALUES = {"paper": "the paper's", "published": "the published value"}
SMALL = "; handwritten digits: {whose} values do not apply"
GAIN = "gain over the base on common seeds; p of a paired t test"


def wide_console() -> Console:
    """Return a console for standard output; it is `WIDTH` wide if that is not a terminal."""
    console = Console()
    given = console.is_terminal or os.environ.get("COLUMNS")
    return console if given else Console(width=WIDTH)


def rich_table(table: Table, name_width: int | None = None) -> RichTable:
    """Return a table for rich, with the title above and the note below."""
    out = RichTable(
        title=escape(table.title) or None, caption=escape(table.note) or None, box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    names, *others = table.columns
    texts = not any(c.number for c in others)  # wrap these columns, not the names of rows
    out.add_column(names.title, min_width=name_width, no_wrap=texts, overflow="fold")
    for c in others:
        if texts:
            out.add_column(c.title, overflow="fold")
            continue
        head = f"{c.group}\n{c.title}" if table.grouped and c.number else c.title
        width = len(c.group or c.title) or None  # keep headings of several words whole
        justify = "right" if c.number else "left"
        out.add_column(head, justify=justify, no_wrap=True, min_width=width)  # type: ignore[arg-type]
    for row in table.rows:
        out.add_row(*map(escape, row))
    return out


def fitting(
    layouts: Iterable[Sequence[Table]], console: Console, name_width: int | None = None
) -> list[RichTable]:
    """Return the first layout that fits the console, or the last one."""
    room = console.options.update(width=1000)
    found: list[RichTable] = []
    for tables in layouts:
        found = [rich_table(table, name_width) for table in tables]
        if all(Measurement.get(console, room, t).minimum <= console.width for t in found):
            break
    return found


def summary(
    results: Sequence[Result], console: Console, asked: Sequence[str] = ()
) -> list[RichTable]:
    """Return a table per dataset, setting and buffer, split if the console is narrow."""
    return [t for layouts in summary_layouts(results, asked) for t in fitting(layouts, console)]


def show(
    experiment: Experiment, results: Sequence[Result], console: Console, *, small: bool
) -> None:
    """Print one table per column of the experiment, with the rows that have results."""
    found: list[Gain] = []
    served = [s for s in serve(experiment, results) if s.results]
    for column in dict.fromkeys(s.entry.column for s in served):
        part = [s for s in served if s.entry.column == column]
        title = ", ".join(dict.fromkeys((experiment.title, column)))
        console.print(Text(title, style="bold"))
        for scores in filter(None, (experiment.scores, measured(part, NEWEST))):
            layouts = score_layouts(known(rows(part, scores)))
            for table in fitting(layouts, console, NAME_WIDTH):
                console.print(table)
        here = column_gains(part, experiment.scores)
        if here:
            console.print(rich_table(short_gain_table(here), NAME_WIDTH))
        found += here
        console.print(Text(_caption(part, here, small=small) + "\n", style="dim"))
    if found:
        console.print(Text(f"{experiment.title}. {in_one_line(found)}\n"))


def _caption(served: Sequence[Served], found: Sequence[Gain], *, small: bool) -> str:
    over, name = spread_over(*(len(s.results) for s in served)), served[0].entry.beside
    beside = BESIDE.format(what=VALUES[name]) if any(s.entry.paper for s in served) else ""
    scale = SMALL.format(whose=WHOSE[name]) if small else ""
    return over + beside + (f"; {GAIN}" * bool(found)) + scale
