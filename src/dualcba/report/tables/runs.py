"""Tables of `dualcba runs`: all runs of a store, one run, and the differences of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dualcba.experiments.result import Result
from dualcba.experiments.runs import Difference, Pair, StoredRun
from dualcba.report.names import MISSING, STATISTICS, score_info
from dualcba.report.tables.model import Column, Table, number, text_columns

DIGEST = 12
"""Characters of a digest that a table shows."""


NAMED = {
    "method": Column("method", number=False),
    "dataset": Column("dataset", number=False),
    "setting": Column("setting", number=False),
    "buffer": Column("M"),
    "seed": Column("seed"),
}
"""Columns of fields that are also part of the name of a run's folder."""


def store_layouts(runs: Sequence[StoredRun]) -> Iterator[list[Table]]:
    """Return layouts of a list of runs, with and without the columns in `NAMED`."""
    return ([store_table(runs, named)] for named in (tuple(NAMED), ()))


def store_table(runs: Sequence[StoredRun], named: Sequence[str]) -> Table:
    """Return a table with a row per run: its folder, fields, ACC, seconds and status."""
    heads = [*(NAMED[name] for name in named)]
    heads += [Column(f"ACC, {title}") for title in STATISTICS.values()]
    lines = []
    for run in runs:
        found = run.to_dict()
        scores = found["scores"] or {}
        words = [_text(found[name]) for name in named]
        acc = [number(scores.get(statistics, {}).get("acc")) for statistics in STATISTICS]
        lines.append((str(run.folder), *words, *acc, number(found["seconds"]), run.status))
    columns = (*text_columns("run"), *heads, Column("s"), *text_columns("status"))
    return Table("", columns, tuple(lines))


def score_table(result: Result) -> Table:
    """Return a table with a row per score of a run."""
    names = dict.fromkeys(name for found in result.scores.values() for name in found)
    pairs = {n: [result.value(s, n) for s in STATISTICS] for n in names}
    known = {name: pair for name, pair in pairs.items() if pair != [None, None]}
    lines = [(score_info(name).arrowed, *map(number, pair)) for name, pair in known.items()]
    heads = map(Column, STATISTICS.values())
    return Table("", (*text_columns("score"), *heads), tuple(lines))


def difference_tables(found: Difference) -> list[Table]:
    """Return a table of the options, data and versions that differ, and a table of the scores."""
    fields = [(name.replace("_", " "), *_texts(pair)) for name, pair in found.spec.items()]
    fields += [_data_line(name, pair) for name, pair in found.data.items()]
    fields += [(f"version: {name}", *_texts(pair)) for name, pair in found.versions.items()]
    heads = (*text_columns("", "first", "second"),)
    tables = [Table("What differs", heads, tuple(fields))] if fields else []
    scores = [
        (f"{score_info(name).arrowed} {STATISTICS.get(statistics, statistics)}", *_numbers(pair))
        for statistics, pairs in found.scores.items()
        for name, pair in pairs.items()
    ]
    columns = (*text_columns("score"), *map(Column, ("first", "second", "Δ")))
    return [*tables, Table("Scores", columns, tuple(scores))]


def _data_line(name: str, pair: Pair) -> tuple[str, str, str]:
    """Return a row on the dataset; a digest is shortened."""
    first, second = (text[: DIGEST if name == "digest" else None] for text in _texts(pair))
    return f"data: {name}", first, second


def _numbers(pair: Pair) -> tuple[str, str, str]:
    first, second = pair
    gap = None if None in pair else second - first
    return number(first, 2), number(second, 2), number(gap, 2, sign=True)


def _texts(pair: Pair) -> tuple[str, str]:
    return _text(pair[0]), _text(pair[1])


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or MISSING
    return MISSING if value is None else str(value)
