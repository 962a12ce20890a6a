"""The tables that close a call of `dualcba run`: mean and interval over seeds, BN beside IBN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dualcba.evaluation import STATISTICS, interval
from dualcba.report.comparison import Served
from dualcba.report.groups import collections
from dualcba.report.names import method_title, seeds

COLUMNS = {"acc": "ACC ↑", "fm": "FM ↓", "acc_auc": "AUC ↑"}


def summary(results: Sequence[dict[str, Any]], console: Console) -> list[Table]:
    """A table for each dataset, setting and buffer, in parts where the console is narrow."""
    tables = []
    for collection in collections(results):
        tables += _fitting(collection.served, console)
    return tables


def _fitting(served: Sequence[Served], console: Console) -> list[Table]:
    """One table, or as few as have room for their scores."""
    keys, room = list(COLUMNS), console.options.update(width=1000)
    for size in range(len(keys), 0, -1):
        parts = [_table(served, keys[k : k + size]) for k in range(0, len(keys), size)]
        if all(Measurement.get(console, room, t).minimum <= console.width for t in parts):
            break
    return parts


def _table(served: Sequence[Served], keys: Sequence[str]) -> Table:
    """One row per method, and per what its runs differ in; each score in percent."""
    first = served[0].results[0]
    table = Table(
        title=f"{first['dataset']}, {first['setting']}, buffer {first['buffer']}",
        caption=f"percent; mean ± 95 % interval over {seeds(*(len(s.results) for s in served))}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("method", overflow="fold")  # where it is narrow, rather than a number
    for key in keys:
        for norm in STATISTICS:
            table.add_column(f"{COLUMNS[key]}\n{norm.upper()}", justify="right", no_wrap=True)
    for s in served:
        cells = (cell(s.results, norm, key) for key in keys for norm in STATISTICS)
        table.add_row(_name(s), *cells)
    return table


def _name(served: Served) -> str:
    """As it is called on the command line, and what tells it from others of that method."""
    method = str(served.entry.spec["method"])
    return method + served.entry.row.removeprefix(method_title(method))


def cell(group: Sequence[dict[str, Any]], norm: str, key: str) -> str:
    """Mean ± half-width; a dash where the score was not measured."""
    values = [r["scores"][norm][key] for r in group]
    if any(v is None for v in values):
        return "–"
    mean, half = interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f}±{half:.1f}"
