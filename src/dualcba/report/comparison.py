"""Results beside the paper's values: pure functions, typed rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualcba.evaluation import STATISTICS, interval
from dualcba.experiments.paper.catalogue import Entry, Experiment, serving
from dualcba.experiments.paper.catalogue import score as value
from dualcba.report.names import score as named

Result = dict[str, Any]
TOLERANCE = 2.5
"""Points that a value may lie from the paper's: seeds differ by 1 to 3."""


@dataclass(frozen=True)
class Served:
    """An entry and the results that serve it, one per seed."""

    entry: Entry
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Measure:
    """Mean over seeds and half-width of the 95 % interval; no half-width from one seed."""

    mean: float
    half: float | None
    seeds: int


@dataclass(frozen=True)
class Cell:
    """One score of one entry, under BN and under IBN, beside the paper's value."""

    score: str
    norm: str
    bn: Measure | None
    ibn: Measure | None
    paper: float | None

    @property
    def ours(self) -> Measure | None:
        """Under the norm that the paper's value belongs to."""
        return self.ibn if self.norm == "ibn" else self.bn

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.paper is None:
            return None
        return self.ours.mean - self.paper

    @property
    def within(self) -> bool | None:
        """Whether it lies within the tolerance, or within the interval where that is wider.

        A cost is nobody's to reproduce: it depends on the machine.

        >>> Cell("acc", "bn", Measure(24.0, 3.5, 3), None, 21.0).within
        True
        >>> Cell("acc", "bn", Measure(24.0, None, 1), None, 21.0).within
        False
        """
        if self.ours is None or self.difference is None or named(self.score).cost:
            return None
        return abs(self.difference) <= max(TOLERANCE, self.ours.half or 0.0)


@dataclass(frozen=True)
class Row:
    """One entry: its name, where it stands, its seeds and its scores."""

    row: str
    column: str
    norm: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Share:
    """How many of the cells that have both values lie within the tolerance."""

    within: int
    cells: int

    @property
    def percent(self) -> float | None:
        """None where there is nothing to compare."""
        return 100 * self.within / self.cells if self.cells else None


def serve(experiment: Experiment, results: Iterable[Result]) -> list[Served]:
    """Each entry with the results that serve it, in order of their seeds, each seed once."""
    pool = list(results)
    return [Served(entry, _matching(entry, pool)) for entry in experiment.entries]


def _matching(entry: Entry, results: list[Result]) -> tuple[Result, ...]:
    plain = ("method", "dataset", "setting", "buffer")  # no default depends on another field
    wanted = {name: entry.spec[name] for name in plain if entry.spec.get(name) is not None}
    near = (result for result in results if wanted.items() <= result.items())
    return tuple(serving(entry.spec, near))


def measure(results: Sequence[Result], norm: str, score: str) -> Measure | None:
    """Mean and interval over the results; None unless every one of them has the score."""
    values = [v for r in results if (v := value(r, norm, score)) is not None]
    if not values or len(values) < len(results):
        return None
    return Measure(*interval(values), len(values))


def compare(experiment: Experiment, results: Iterable[Result]) -> list[Row]:
    """One row per entry of the experiment, whether or not any result serves it."""
    return rows(serve(experiment, results), experiment.scores)


def rows(served: Iterable[Served], scores: Sequence[str]) -> list[Row]:
    """The rows of entries that have been served."""
    return [
        Row(
            s.entry.row,
            s.entry.column,
            s.entry.norm,
            tuple(r["seed"] for r in s.results),
            tuple(_cell(s, score) for score in scores),
        )
        for s in served
    ]


def known(found: Sequence[Row]) -> list[Row]:
    """The same rows without the scores that neither a run nor the paper gives in any of them."""
    there = {c.score for row in found for c in row.cells if (c.bn, c.ibn, c.paper) != (None,) * 3}
    return [replace(r, cells=tuple(c for c in r.cells if c.score in there)) for r in found]


def _cell(served: Served, score: str) -> Cell:
    bn, ibn = (measure(served.results, norm, score) for norm in STATISTICS)
    return Cell(score, served.entry.norm, bn, ibn, served.entry.paper.get(score))


def within_tolerance(rows: Iterable[Row], score: str | None = None) -> Share:
    """The share of cells that lie within the tolerance, of one score or of all.

    >>> near = Cell("acc", "bn", Measure(22.0, 1.0, 3), None, 21.66)
    >>> far = Cell("acc", "bn", Measure(32.3, 1.7, 3), None, 8.28)
    >>> within_tolerance([Row("ER", "", "bn", (0,), (near,)), Row("LUCIR", "", "bn", (0,), (far,))])
    Share(within=1, cells=2)
    """
    cells = [c.within for row in rows for c in row.cells if score in (None, c.score)]
    return Share(cells.count(True), cells.count(True) + cells.count(False))
