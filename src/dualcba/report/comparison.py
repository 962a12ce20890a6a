"""Results beside the paper's values, and methods beside each other: pure functions, typed rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualcba.evaluation import NORMS, interval
from dualcba.experiments.catalog import Entry, Experiment, matches
from dualcba.report.names import split_method

Result = dict[str, Any]
TOLERANCE = 2.5
"""Points that a value may lie from the paper's: seeds differ by 1 to 3."""

SAME = (
    "dataset", "setting", "buffer", "tasks", "class_order", "epochs", "network", "batch_size",
    "lr", "norm", "forward", "seen_only", "boundaries",
)  # fmt: skip
"""What a method and its Dual-CBA must share to be compared."""


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

        >>> Cell("acc", "bn", Measure(24.0, 3.5, 3), None, 21.0).within
        True
        >>> Cell("acc", "bn", Measure(24.0, None, 1), None, 21.0).within
        False
        """
        if self.ours is None or self.difference is None:
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
class Paired:
    """Paired t test over common seeds: a Dual-CBA minus its base method, under one norm."""

    base: str
    dual: str
    column: str
    score: str
    norm: str
    seeds: int
    difference: float | None
    half: float | None
    p: float | None


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
    found: dict[int, Result] = {}
    for result in results:
        if wanted.items() <= result.items() and matches(result, entry.spec):
            found.setdefault(result["seed"], result)
    return tuple(found[seed] for seed in sorted(found))


def value(result: Result, norm: str, score: str) -> float | None:
    """A score of a result; `task3` from the accuracy matrix; None where it was not measured."""
    number = score.removeprefix("task")
    if number.isdigit() and number != score:
        matrix = result.get("accuracy_matrix", {}).get(norm)
        known = matrix and 0 < int(number) <= len(matrix[-1])
        return float(matrix[-1][int(number) - 1]) if known else None
    found = result["scores"].get(norm, {}).get(score)
    return None if found is None else float(found)


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


def _cell(served: Served, score: str) -> Cell:
    bn, ibn = (measure(served.results, norm, score) for norm in NORMS)
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


def paired_tests(served: Sequence[Served], score: str = "acc") -> list[Paired]:
    """Every Dual-CBA against its base method of the same column, BN to BN and IBN to IBN."""
    tests, done = [], set()
    for dual in served:
        base_name, kind = split_method(dual.entry.spec.get("method", ""))
        for base in served if kind == "dual-cba" else ():
            key = (dual.entry.column, _text(base.entry.spec), _text(dual.entry.spec))
            same = base.entry.column == dual.entry.column and _alike(base.entry, dual.entry)
            if base.entry.spec.get("method") == base_name and same and key not in done:
                done.add(key)
                tests += [_test(base, dual, score, norm) for norm in NORMS]
    return tests


def _alike(one: Entry, two: Entry) -> bool:
    options = [e.spec.get("options") or {} for e in (one, two)]
    same = all(one.spec.get(name) == two.spec.get(name) for name in SAME)
    return same and options[0] == options[1]


def _text(spec: dict[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)


def _test(base: Served, dual: Served, score: str, norm: str) -> Paired:
    ours = {r["seed"]: value(r, norm, score) for r in dual.results}
    theirs = {r["seed"]: value(r, norm, score) for r in base.results}
    gaps = [
        a - b
        for seed in sorted(ours.keys() & theirs.keys())
        if (a := ours[seed]) is not None and (b := theirs[seed]) is not None
    ]
    difference, half, p = paired_t(gaps)
    names = base.entry.row, dual.entry.row, dual.entry.column
    return Paired(*names, score, norm, len(gaps), difference, half, p)


def paired_t(gaps: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, half-width of the 95 % interval and two-sided p of differences seed by seed.

    One seed has no spread, and so neither interval nor p; nor has p what does not vary at all.

    >>> [round(x, 3) for x in paired_t([1.0, 2.0, 3.0])]
    [2.0, 2.484, 0.074]
    >>> paired_t([1.0]), paired_t([])
    ((1.0, None, None), (None, None, None))
    """
    if not gaps:
        return None, None, None
    mean, half = interval(list(gaps))
    if half is None or np.ptp(gaps) == 0:
        return mean, half, None
    from scipy.stats import ttest_rel

    return mean, half, float(ttest_rel(gaps, np.zeros(len(gaps))).pvalue)
