"""Agreement with the paper: which of its values our runs reproduce, and which they do not.

A cell is one score in one row and column of the paper's tables. It agrees if our value differs by
at most `TOLERANCE` points or lies within our interval (`Cell.within`). Cells without runs are
counted separately. For cells that disagree, the tables list other settings that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualcba.experiments.paper.catalogue import FRONTIER, READINGS, Entry, Experiment, experiments
from dualcba.experiments.result import NAMED
from dualcba.report.comparison import TOLERANCE, Row, Served, measure, rows
from dualcba.report.names import score_info
from dualcba.report.results import SCORING
from dualcba.report.tables.model import Table, number, plain_spread, text_columns

COUNTED = ("acc", "fm")
"""The scores whose cells are counted."""

KEPT = (
    *NAMED, "protocol", "validation", "real_time", "tasks", "class_order", "network", "norm",
    "levels", "agnostic", "freeze_after",
)  # fmt: skip
"""Fields that must be equal for a run to count as another reading of the same cell."""

READ = (
    "labelled_batches", "store_again", "forward", "loss_mean", "tracking", "epochs", "lr_drops",
    "adaptor_lr", "readout", "method_options", *SCORING,
)  # fmt: skip
"""Fields in which another reading may differ, even if the entry sets them."""


NAMED_READINGS = 2
"""The largest number of readings to name; more are only counted."""


@dataclass(frozen=True)
class Tally:
    """The number of cells that agree, that were run, and of all cells in the paper.

    >>> Tally(2, 3, 17) + Tally(1, 1, 1)
    Tally(agree=3, run=4, cells=18)
    """

    agree: int = 0
    run: int = 0
    cells: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.agree + other.agree, self.run + other.run, self.cells + other.cells)

    @property
    def of_run(self) -> str:
        """The number of agreeing cells out of those that were run, as text."""
        return f"{self.agree} of {self.run}" if self.run else "not run" if self.cells else ""

    @property
    def share(self) -> str:
        """The text of `of_run` with its percentage.

        >>> Tally(2, 3, 17).share
        '2 of 3, 67 %'
        """
        return f"{self.of_run}, {100 * self.agree / self.run:.0f} %" if self.run else self.of_run

    def sentence(self, score: str) -> str:
        """Return the counts for all cells of the paper as a sentence.

        >>> Tally(2, 3, 4).sentence("acc")
        'Of the 4 values of ACC in the paper, 2 agree (50 %), 1 do not, and 1 have not been run.'
        >>> Tally(3, 4, 4).sentence("acc")
        'All 4 values of ACC in the paper have been run: 3 agree (75 %), 1 do not.'
        """
        title, others, left = score_info(score).title, self.run - self.agree, self.cells - self.run
        agree = f"{self.agree} agree ({100 * self.agree / max(self.cells, 1):.0f} %)"
        values = f"{self.cells} values of {title} in the paper"
        if not left:
            return f"All {values} have been run: {agree}, {others} do not."
        return f"Of the {values}, {agree}, {others} do not, and {left} have not been run."


def tally(found: Iterable[Row], score: str | None = None) -> Tally:
    """Count the cells of one score, or of all scores.

    >>> from dualcba.report.comparison import Cell, Measure
    >>> cells = [Cell("acc", "bn", m, None, 21.66) for m in (Measure(22.0, None, 1), None)]
    >>> tally([Row("ER", "", "bn", (), (cell,)) for cell in cells], "acc")
    Tally(agree=1, run=1, cells=2)
    """
    cells = [c for row in found for c in row.cells if c.paper is not None]
    within = [c.within for c in cells if score in (None, c.score)]
    return Tally(within.count(True), len(within) - within.count(None), len(within))


def paper_entries(experiment: Experiment) -> list[Entry]:
    """Return the entries with a value of ACC or FM in the paper, column by column.

    The frontier tables, which repeat some of these values, are not counted.
    """
    if experiment.name in FRONTIER:
        return []
    columns = list(dict.fromkeys(e.column for e in experiment.entries))
    entries = sorted(experiment.entries, key=lambda e: columns.index(e.column))
    return [e for e in entries if e.counted and any(e.paper.get(s) is not None for s in COUNTED)]


def by_column(served: Iterable[Served]) -> dict[str, list[Row]]:
    """Return the rows of each column, with the counted scores."""
    found: dict[str, list[Row]] = {}
    for row in rows(served, COUNTED):
        found.setdefault(row.column, []).append(row)
    return found


# ---------------------------------------------------------------------- what was tried


def tried(entry: Entry, others: Iterable[Served]) -> list[tuple[str, Served]]:
    """Return runs of the same cell with other settings, each named by the fields that differ.

    They share the method, dataset, setting and buffer of the entry, and the fields that its row
    sets.
    """
    found = []
    for other in others:
        fields = other.entry.fields
        if other.results and _same_cell(entry, other) and (changed := _changed(entry, fields)):
            found.append((", ".join(f"{k} = {_text(v)}" for k, v in changed.items()), other))
    return found


def planned(entry: Entry, served: Callable[[Entry], bool]) -> list[str]:
    """Return the rows with other readings of the same cell that have not been run."""
    entries = [e for name in READINGS for e in experiments()[name].entries]
    alike = [e for e in entries if e.donor == entry.donor and _shares_fixed_fields(entry, e.fields)]
    new = [e for e in alike if _changed(entry, e.fields) and not served(e)]
    return list(dict.fromkeys(e.row for e in new))


def _same_cell(entry: Entry, other: Served) -> bool:
    """Return whether a run is of the same cell and loaded the same class-agnostic part, if any."""
    fields, origin = other.entry.fields, other.results[0].agnostic_provenance or {}
    loaded = fields.get("agnostic_from") is not None
    same_part = loaded is (entry.donor is not None) and origin.get("dataset") == entry.donor
    return same_part and _shares_fixed_fields(entry, fields)


def _shares_fixed_fields(entry: Entry, fields: Mapping[str, Any]) -> bool:
    own = entry.fields
    given = [name for name in entry.given if name not in READ]
    return all(fields.get(name) == own.get(name) for name in (*KEPT, *given))


def _changed(entry: Entry, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which a run differs from an entry, with the method's options by name.

    An option that only the entry sets is shown as "default".
    """
    own, ignored = entry.fields, (*SCORING, "seed", "agnostic_from", "method_options")
    changed = {k: v for k, v in fields.items() if k not in ignored and v != own.get(k)}
    usual, options = own.get("method_options") or {}, fields.get("method_options") or {}
    given = {**dict.fromkeys(usual, "default"), **options}
    return changed | {k: v for k, v in given.items() if v != usual.get(k)}


def _text(value: object) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


# ---------------------------------------------------------------------- tables

COUNT_HEADS = ("experiment", "column", "ACC agrees", "of the paper", "FM agrees", "of the paper")
CELL_HEADS = ("experiment", "column", "row", "ours", "paper", "difference", "tried")


def count_line(name: str, where: str, found: Iterable[Row]) -> list[str]:
    """Return the row of counts for one column of an experiment."""
    line, lines = [name, where], list(found)
    for score in COUNTED:
        one = tally(lines, score)
        line += [one.of_run, str(one.cells or "")]
    return line


def total_line(found: Sequence[Row]) -> list[str]:
    """Return the row of counts for all cells."""
    parts = [tally(found, score) for score in COUNTED]
    return ["all", "", *(text for one in parts for text in (one.share, str(one.cells)))]


def cell_line(name: str, where: str, row: Row, score: str, attempts: str) -> list[str] | None:
    """Return the row of a cell that disagrees, or None if it agrees or was not run."""
    (cell,) = (c for c in row.cells if c.score == score)
    if cell.within is not False:
        return None
    numbers = plain_spread(cell.ours), number(cell.paper, 2), number(cell.difference, sign=True)
    return [name, where, row.row, *numbers, attempts]


def attempts(
    entry: Entry, score: str, others: Iterable[Served], served: Callable[[Entry], bool]
) -> str:
    """Return the values of other runs of a cell, and the readings not yet run, as text."""
    parts = [
        f"{what}: {plain_spread(measure(one.results, entry.statistics, score))}"
        for what, one in tried(entry, others)
    ]
    rest = planned(entry, served)
    names = ", ".join(f"“{row}”" for row in rest)
    left = names if len(rest) <= NAMED_READINGS else f"{len(rest)} other readings"
    return "; ".join([*parts, *([f"not run yet: {left}"] if rest else [])]) or "nothing yet"


def agreement_tables(
    shown: Iterable[tuple[Experiment, Sequence[Served]]], others: Sequence[Served] = ()
) -> list[Table]:
    """Return a table of counts per experiment, and one table per score of cells that disagree.

    `others` are all runs; those with other settings of a disagreeing cell are listed beside it.
    """
    found = {experiment.name: list(served) for experiment, served in shown}
    if not any(paper_entries(experiments()[name]) for name in found if name in experiments()):
        return []
    every: list[tuple[str, Served]] = []
    for name, experiment in experiments().items():
        runs = {(s.entry.row, s.entry.column): s.results for s in found.get(name, ())}
        entries = paper_entries(experiment)
        every += [(name, Served(e, runs.get((e.row, e.column), ()))) for e in entries]
    return [_counts(every), *_disagreements(every, others)]


def _counts(every: Sequence[tuple[str, Served]]) -> Table:
    lines, all_rows = [], []
    for name in dict.fromkeys(name for name, _ in every):
        for column, part in by_column(s for one, s in every if one == name).items():
            lines.append(tuple(count_line(name, column, part)))
            all_rows += part
    lines.append(tuple(total_line(all_rows)))
    note = " ".join(tally(all_rows, score).sentence(score) for score in COUNTED)
    rule = f"A value agrees within max({TOLERANCE} points, the interval). "
    title = "All values of ACC and FM in the paper"
    return Table(title, text_columns(*COUNT_HEADS), tuple(lines), rule + note)


def _disagreements(every: Sequence[tuple[str, Served]], others: Sequence[Served]) -> list[Table]:
    ran = {s.entry.identity for s in others if s.results}
    tables = []
    for score in COUNTED:
        lines = []
        for name, s in every:
            (row,) = rows([s], COUNTED)
            if next(c for c in row.cells if c.score == score).within is False:
                text = attempts(s.entry, score, others, lambda e: e.identity in ran)
                lines.append(tuple(cell_line(name, s.entry.column, row, score, text) or ()))
        title = f"Values of {score_info(score).title} that do not agree"
        tables += [Table(title, text_columns(*CELL_HEADS), tuple(lines))] if lines else []
    return tables
