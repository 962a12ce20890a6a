"""Compare results with the paper's values: rows of cells with means and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dualcba.evaluation import interval
from dualcba.experiments.matching import Index
from dualcba.experiments.paper.catalogue import Entry, Experiment
from dualcba.experiments.result import Result
from dualcba.report.names import STATISTICS, score_info

TOLERANCE = 2.5
"""Largest difference from the paper's value, in points, that counts as agreement."""

FEWEST = 3
"""Smallest number of seeds for which an interval is used to judge agreement."""

NEWEST = ("newest", "newest_last", "newest_recall", "prequential")
"""Scores of the newest classes; results of earlier versions do not have them."""


CONTROLS = ("task_aware_acc", "ncm_acc", "nn_acc", "lda_acc", "random_acc")
"""Accuracy with known tasks, and of other classifiers on the same stream, if recorded."""


@dataclass(frozen=True)
class Served:
    """An entry of a table and its results, one per seed."""

    entry: Entry
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Measure:
    """Mean over seeds and half-width of the 95 % interval; None for a single seed."""

    mean: float
    half: float | None
    seeds: int


@dataclass(frozen=True)
class Cell:
    """One score of one entry, evaluated with BN and with IBN, beside the paper's value."""

    score: str
    statistics: str
    """The statistics that the paper's value was evaluated with: `bn` or `ibn`."""

    bn: Measure | None
    ibn: Measure | None
    paper: float | None

    @property
    def ours(self) -> Measure | None:
        """Our value, evaluated with the same statistics as the paper's."""
        return self.ibn if self.statistics == "ibn" else self.bn

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.paper is None:
            return None
        return self.ours.mean - self.paper

    @property
    def within(self) -> bool | None:
        """Whether the difference is within the tolerance, or within our interval if that is wider.

        The interval over two seeds is ignored: its half-width is 13 standard errors. None if a
        value is missing, or for a cost, which depends on the machine.

        >>> Cell("acc", "bn", Measure(24.0, 3.5, 3), None, 21.0).within
        True
        >>> Cell("acc", "bn", Measure(24.0, 3.5, 2), None, 21.0).within
        False
        """
        if self.ours is None or self.difference is None or score_info(self.score).fixed:
            return None
        half = self.ours.half if self.ours.seeds >= FEWEST else None
        return self.near or abs(self.difference) <= (half or 0.0)

    @property
    def near(self) -> bool:
        """Whether the difference is within the tolerance, up to rounding errors.

        >>> Cell("fm", "bn", Measure((9.089 + 11.1 + 10.711) / 3, None, 3), None, 12.8).near
        True
        """
        return self.difference is not None and abs(self.difference) <= TOLERANCE + 1e-9


@dataclass(frozen=True)
class Row:
    """One entry: the titles of its row and column, its seeds and its scores."""

    row: str
    column: str
    statistics: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    beside: str = "paper"
    """Where the values for comparison are from: `paper` or `published`, see `Entry`."""


def serve(experiment: Experiment, results: Iterable[Result]) -> list[Served]:
    """Return each entry with its matching results, sorted by seed, one per seed."""
    index = Index(results)
    return [Served(entry, index.serving(entry)) for entry in experiment.entries]


def split_run(served: Sequence[Served]) -> tuple[list[Served], list[str]]:
    """Drop columns and rows without any results; return the rest, and remarks that name them."""
    columns = {s.entry.column for s in served if s.results}
    names = {s.entry.row for s in served if s.results}
    here = [s for s in served if s.entry.column in columns]
    absent = dict.fromkeys(s.entry.column for s in served if s.entry.column not in columns)
    lacking = dict.fromkeys(s.entry.row for s in here if s.entry.row not in names)
    remarks = [f"Not run: {'; '.join(absent)}."] if absent else []
    remarks += [f"Rows not run: {'; '.join(lacking)}."] if lacking else []
    return [s for s in here if s.entry.row in names], remarks


def measure(results: Sequence[Result], statistics: str, score: str) -> Measure | None:
    """Return mean and interval over the results, or None unless all of them have the score."""
    values = [v for r in results if (v := r.value(statistics, score)) is not None]
    if not values or len(values) < len(results):
        return None
    return Measure(*interval(values), len(values))


def measured(served: Iterable[Served], scores: Sequence[str]) -> list[str]:
    """Return the scores that at least one result has."""
    results = [r for s in served for r in s.results]
    pairs = [(name, statistics) for name in scores for statistics in STATISTICS]
    there = {n for n, s in pairs if any(r.value(s, n) is not None for r in results)}
    return [name for name in scores if name in there]


def further(served: Iterable[Served], asked: Sequence[str] = ()) -> list[str]:
    """Return the scores for the table of further scores.

    These are the requested ones, balanced accuracy for long-tailed streams, the relative cost of
    real-time runs, and accuracies of other classifiers that were recorded.
    """
    entries = list(served)
    tail = any("longtail" in r.spec.setting for s in entries for r in s.results)
    applying = measured(entries, [*["balanced_acc"] * tail, "relative_cost", *CONTROLS])
    return list(dict.fromkeys([*asked, *applying]))


def compare(experiment: Experiment, results: Iterable[Result]) -> list[Row]:
    """Return one row per entry of the experiment, including entries without results."""
    return rows(serve(experiment, results), experiment.scores)


def rows(served: Iterable[Served], scores: Sequence[str]) -> list[Row]:
    """Return one row per entry."""
    served = list(served)
    return [
        Row(
            s.entry.row,
            s.entry.column,
            s.entry.statistics,
            tuple(r.seed for r in s.results),
            tuple(_cell(s, score, served) for score in scores),
            s.entry.beside,
        )
        for s in served
    ]


def known(found: Sequence[Row]) -> list[Row]:
    """Return the rows without scores that are missing from all runs and from the paper."""
    there = {c.score for row in found for c in row.cells if (c.bn, c.ibn, c.paper) != (None,) * 3}
    return [replace(r, cells=tuple(c for c in r.cells if c.score in there)) for r in found]


def _cell(served: Served, score: str, all_served: Sequence[Served]) -> Cell:
    if score == "relative_time":
        bn = ibn = relative_time(served, all_served)
    else:
        bn, ibn = (measure(served.results, statistics, score) for statistics in STATISTICS)
    return Cell(score, served.entry.statistics, bn, ibn, served.entry.paper.get(score))


def relative_time(served: Served, others: Iterable[Served]) -> Measure | None:
    """Return the training time relative to ER in the same column, averaged over seeds.

    Each run is compared with ER with the same seed on the same device; None if there is none.
    """
    column = served.entry.column
    reference = {
        (r.seed, r.versions.get("device")): r.seconds.get("train")
        for s in reversed([s for s in others if s.entry.column == column])
        if s.entry.method == "er"
        for r in s.results
    }
    pairs = [
        (r.seconds.get("train"), reference.get((r.seed, r.versions.get("device"))))
        for r in served.results
    ]
    ratios = [own / er for own, er in pairs if own is not None and er]
    return Measure(*interval(ratios), len(ratios)) if ratios else None
