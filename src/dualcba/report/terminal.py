"""The table that closes a call of `dualcba run`: mean and interval over seeds, BN beside IBN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from dualcba.evaluation import NORMS, interval
from dualcba.report.names import seeds

COLUMNS = {"acc": "ACC ↑", "fm": "FM ↓", "acc_auc": "AUC ↑"}


def summary(results: Iterable[dict[str, Any]]) -> Table:
    """One row per method; each score under BN and under IBN, in percent."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["method"], []).append(result)
    first = next(iter(groups.values()))[0]
    over = seeds(*(len({r["seed"] for r in group}) for group in groups.values()))
    table = Table(
        title=f"{first['dataset']}, {first['setting']}, buffer {first['buffer']}",
        caption=f"percent; mean ± 95 % interval over {over}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("method", overflow="fold")  # where it is narrow, rather than a number
    for title in COLUMNS.values():
        for norm in NORMS:
            table.add_column(f"{title}\n{norm.upper()}", justify="right", no_wrap=True)
    for method, group in groups.items():
        table.add_row(method, *(cell(group, norm, key) for key in COLUMNS for norm in NORMS))
    return table


def cell(group: list[dict[str, Any]], norm: str, key: str) -> str:
    """Mean ± half-width; a dash where the score was not measured."""
    values = [r["scores"][norm][key] for r in group]
    if any(v is None for v in values):
        return "–"
    mean, half = interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f}±{half:.1f}"
