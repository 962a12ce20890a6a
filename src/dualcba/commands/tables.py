"""The terminal's tables of an experiment: ours under BN and IBN beside the paper's values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dualcba.evaluation import NORMS, interval
from dualcba.experiments.catalog import Entry, Experiment, score, serving

Result = dict[str, Any]
Served = tuple[Entry, list[Result]]
TITLES = {"acc": "ACC ↑", "fm": "FM ↓", "acc_auc": "AUC ↑", "acc_auc_last": "AUC, last ↑"}
COSTS = ("parameters", "gpu_memory", "seconds_per_task")
"""Scores that are the same under every normalisation."""

WIDE = 3
"""With more scores than these, a row has a line for each normalisation instead of a column."""

CAPTION = "mean ± 95 % interval over {seeds} seed(s)"
BESIDE = "; Δ is ours minus the paper's, under the normalisation in brackets"
SMALL = "; handwritten digits: the paper's values do not apply"


def wide_console() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need be."""
    console = Console()
    return console if console.is_terminal else Console(width=220)


def measured(results: Sequence[Result], norm: str, name: str) -> tuple[float, float | None] | None:
    """Mean and half-width over seeds; None unless all results have the score."""
    values = [score(result, norm, name) for result in results]
    known = [v for v in values if v is not None]
    return interval(known) if known and len(known) == len(values) else None


def tables(experiment: Experiment, results: Sequence[Result], *, small: bool) -> Iterator[Group]:
    """One table per column of the experiment, with the rows that have results."""
    served: dict[str, list[Served]] = {}
    for entry in experiment.entries:
        if found := serving(entry.spec, results):
            served.setdefault(entry.column, []).append((entry, found))
    layout = _long if len(experiment.scores) > WIDE else _wide
    for column, rows in served.items():
        compared = any(entry.paper for entry, _ in rows)
        seeds = "/".join(map(str, sorted({len(found) for _, found in rows})))
        caption = CAPTION.format(seeds=seeds) + (BESIDE if compared else "")
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("", no_wrap=True)
        layout(table, experiment.scores, rows, compared)
        title = Text(f"{experiment.title}, {column}", style="bold")
        yield Group(title, table, Text(caption + (SMALL if small else "") + "\n", style="dim"))


def _wide(table: Table, scores: Sequence[str], rows: list[Served], compared: bool) -> None:
    for name in scores:
        ours = ["ours"] if name in COSTS else [norm.upper() for norm in NORMS]
        for part in [*ours, *(["paper", "Δ"] if compared else [])]:
            table.add_column(f"{_title(name)}\n{part}", justify="right", no_wrap=True)
    for entry, found in rows:
        texts: list[str] = []
        for name in scores:
            norms = NORMS[:1] if name in COSTS else NORMS
            texts += [_text(measured(found, norm, name), name) for norm in norms]
            texts += [_paper(entry, name), _difference(entry, found, name)] if compared else []
        table.add_row(entry.row, *texts)


def _long(table: Table, scores: Sequence[str], rows: list[Served], compared: bool) -> None:
    table.add_column("", no_wrap=True)
    for name in scores:
        table.add_column(_title(name), justify="right", no_wrap=True)
    for entry, found in rows:
        for norm in NORMS:
            texts = [_text(measured(found, norm, name), name) for name in scores]
            table.add_row(entry.row if norm == NORMS[0] else "", norm.upper(), *texts)
        if compared:
            given = [_number(entry.paper.get(name)) for name in scores]
            table.add_row("", f"paper ({entry.norm.upper()})", *given)
            table.add_row("", "Δ", *(_difference(entry, found, name) for name in scores))


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("task", "task ").replace("_", " "))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _text(pair: tuple[float, float | None] | None, name: str) -> str:
    if pair is None:
        return "–"
    mean, half = pair
    places = 3 if name in COSTS else 1
    return f"{mean:.{places}f}" if half is None else f"{mean:.{places}f}±{half:.{places}f}"


def _paper(entry: Entry, name: str) -> str:
    value = entry.paper.get(name)
    if value is None or name in COSTS:
        return "–" if value is None else f"{value:g}"
    return f"{value:.2f} ({entry.norm.upper()})"


def _difference(entry: Entry, found: Sequence[Result], name: str) -> str:
    ours, paper = measured(found, entry.norm, name), entry.paper.get(name)
    places = 3 if name in COSTS else 1
    return "–" if ours is None or paper is None else f"{ours[0] - paper:+.{places}f}"


def as_data(experiment: Experiment, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The same for `--json`: each entry with its means and half-widths."""
    rows = []
    for entry in experiment.entries:
        found = serving(entry.spec, results)
        ours = {n: {s: measured(found, n, s) for s in experiment.scores} for n in NORMS}
        rows.append(
            {
                "row": entry.row,
                "column": entry.column,
                "norm": entry.norm,
                "paper": entry.paper,
                "seeds": [result["seed"] for result in found],
                "ours": ours,
            }
        )
    return rows
