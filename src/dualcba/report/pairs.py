"""Pairwise comparison of methods: their differences on common seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dualcba.errors import unknown
from dualcba.options import recipe_of
from dualcba.report.comparison import Served
from dualcba.report.gains import Gap, gap
from dualcba.report.results import Collection


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over their common seeds: the first minus the second."""

    first: str
    second: str
    column: str
    score: str
    bn: Gap
    """Both with BN."""

    ibn: Gap
    """Both with IBN."""

    @property
    def title(self) -> str:
        """The two methods as text."""
        return f"{self.first} minus {self.second}"

    @property
    def seeds(self) -> int:
        """The number of common seeds."""
        return max(self.bn.seeds, self.ibn.seeds)


def pairs(served: Sequence[Served], score: str = "acc") -> list[Paired]:
    """Return the difference of every two methods with common seeds: the later minus the earlier."""
    found = [_paired(first, second, score) for second, first in combinations(served, 2)]
    return [pair for pair in found if pair.seeds]


def _paired(first: Served, second: Served, score: str) -> Paired:
    bn, ibn = (gap(first, second, (s, s), score) for s in ("bn", "ibn"))
    return Paired(first.entry.row, second.entry.row, first.entry.column, score, bn, ibn)


def chosen(groups: Sequence[Collection], methods: Sequence[str]) -> list[Collection]:
    """Return collections with only some methods, named as on the command line; by default all."""
    known = sorted({name for group in groups for s in group.served for name in _names(s)})
    for method in methods:
        if method not in known:
            raise ValueError(unknown("method", method, known))
    return [_only(group, methods or known) for group in groups]


def unpaired(
    groups: Sequence[Collection], methods: Sequence[str], found: Sequence[Paired]
) -> list[str]:
    """Return a line for each method that is in no pair."""
    rows = {(pair.column, row) for pair in found for row in (pair.first, pair.second)}
    every = [s for group in groups for s in group.served]
    there = {n for s in every if (s.entry.column, s.entry.row) in rows for n in _names(s)}
    return [
        f"{method} is in no pair: no other of these methods shares its dataset, setting, buffer, "
        "protocol and a seed"
        for method in methods
        if method not in there
    ]


def _only(group: Collection, methods: Sequence[str]) -> Collection:
    kept = tuple(s for s in group.served if not _names(s).isdisjoint(methods))
    return replace(group, served=kept)


def _names(served: Served) -> set[str]:
    """Return the names that select a row: its method, and its recipe if it follows one."""
    recipe = recipe_of(served.entry.fields)
    return {served.entry.method, *(recipe or ())[:1]}
