"""The table that `dualcba bench` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

COLUMNS = {
    "ms_per_step": ("ms/step", "{:.2f}"),
    "ratio_to_dualcba": ("ratio", "{:.2f}"),
    "samples_per_second": ("samples/s", "{:.0f}"),
    "us_per_evaluated_image": ("evaluation\nµs/image", "{:.1f}"),
    "peak_mib": ("peak\nMiB", "{:.0f}"),
    "peak_gpu_mib": ("peak GPU\nMiB", "{:.0f}"),
    "first_step_s": ("first\nstep s", "{:.2f}"),
}
CUDA_ONLY = ("ms_per_step", "peak_gpu_mib")
"""Columns not shown for a CPU, whose absolute times depend on other load."""


def table(rows: Iterable[dict[str, Any]], title: str, *, cuda: bool) -> Table:
    """Return a table with one row per method and contender."""
    shown = {key: how for key, how in COLUMNS.items() if cuda or key not in CUDA_ONLY}
    out = Table(
        title=title,
        caption="ratio: time of a step over dualcba's, above 1 is slower",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    out.add_column("method", no_wrap=True)
    out.add_column("contender", no_wrap=True)
    for heading, _ in shown.values():
        out.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row.get(key), form) for key, (_, form) in shown.items()]
        out.add_row(row["method"], row["contender"], *cells)
    return out


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
