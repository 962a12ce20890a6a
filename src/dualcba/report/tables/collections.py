"""Tables of the user's runs: methods × buffers, and the values of each seed."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.report.comparison import Served, measure
from dualcba.report.names import MISSING, STATISTICS, score_info
from dualcba.report.results import Collection
from dualcba.report.tables.model import Column, Table, number, spread, text_columns

MOST_SEEDS = 12
"""The largest number of seeds in a table; the CSV has all."""


def by_stream(groups: Sequence[Collection]) -> dict[str, list[Collection]]:
    """Group collections that differ only by their buffer, by title without the buffer."""
    found: dict[str, list[Collection]] = {}
    for group in groups:
        found.setdefault(group.stream, []).append(group)
    return {title: part for title, part in found.items() if len(_buffers(part)) > 1}


def _buffers(groups: Sequence[Collection]) -> set[int]:
    return {group.first.spec.buffer for group in groups}


def buffer_table(groups: Sequence[Collection], title: str, score: str) -> Table:
    """Return a table of one score: a row per method, columns for each buffer under BN and IBN."""
    names = list(dict.fromkeys(s.entry.row for group in groups for s in group.served))
    columns = [Column(s, f"M = {g.first.spec.buffer}") for g in groups for s in STATISTICS.values()]
    lines = []
    for name in names:
        found = [{s.entry.row: s for s in group.served}.get(name) for group in groups]
        lines.append((name, *(_value(s, k, score) for s in found for k in STATISTICS)))
    heads = (*text_columns("method"), *columns)
    return Table(f"{title}: {score_info(score).arrowed} by buffer", heads, tuple(lines))


def _value(served: Served | None, statistics: str, score: str) -> str:
    return MISSING if served is None else spread(measure(served.results, statistics, score))


def seed_tables(served: Sequence[Served], score: str = "acc") -> list[Table]:
    """Return a table of one score for each column of an experiment, with a column per seed.

    There is no table for a single seed, or for more than `MOST_SEEDS`.
    """
    columns = dict.fromkeys(s.entry.column for s in served)
    parts = {name: [s for s in served if s.entry.column == name] for name in columns}
    return [table for name, part in parts.items() for table in _seed_table(part, name, score)]


def _seed_table(served: Sequence[Served], title: str, score: str) -> list[Table]:
    seeds = sorted({r.seed for s in served for r in s.results})
    if not 1 < len(seeds) <= MOST_SEEDS:
        return []
    lines = []
    for s in served:
        by_seed = {r.seed: r for r in s.results}
        for statistics, name in STATISTICS.items():
            values = [by_seed[k].value(statistics, score) if k in by_seed else None for k in seeds]
            lines.append((s.entry.row, name, *map(number, values)))
    columns = (*text_columns("method", "statistics"), *(Column(f"seed {k}") for k in seeds))
    return [Table(f"{title}: {score_info(score).arrowed} of each seed", columns, tuple(lines))]
