"""The curves of a run as one table in a Parquet file, for pandas, polars and DuckDB.

`result.json` has the same numbers. The table has one row per accuracy, with the statistics, the
task and the step of its measurement. Each row also has the fields that identify the run, so that
the files of many runs can be read as one table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dualcba.experiments.parquet import Column, parquet
from dualcba.io import atomic_write

CURVES = "curves.parquet"
CURVES_SCHEMA = 1
"""The version of the columns, stored in the file's metadata as `dualcba.schema`."""

NAMES: dict[str, Literal["int", "text"]] = {
    "method": "text", "dataset": "text", "setting": "text", "buffer": "int", "seed": "int",
}  # fmt: skip
"""Columns that identify the run, with the name of its folder."""

Row = tuple[str, str, int | None, int, int, float]
"""Moment, statistics, step, current task, evaluated task, accuracy in percent."""


def curve_files(result: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """Return a function that writes the curves of a result, by file name."""
    return {CURVES: partial(write_curves, result=result)}


def write_curves(path: Path, result: Mapping[str, Any]) -> None:
    """Write the curves in the content of `result.json`; the run is named after the folder."""
    with atomic_write(path) as draft:
        draft.write_bytes(curve_table(result, path.parent.name))


def curve_table(result: Mapping[str, Any], run: str) -> bytes:
    """Return the curves of a result as the content of a Parquet file."""
    at_ends = _task_ends(result["accuracy_matrix"], result.get("task_ends") or ())
    rows = [*_anytime(result.get("anytime") or {}), *at_ends]
    moment, statistics, step, task, scored, accuracy = zip(*rows, strict=True) if rows else [()] * 6
    columns = [
        Column("run", "text", [run] * len(rows)),
        *(Column(name, kind, [result[name]] * len(rows)) for name, kind in NAMES.items()),
        Column("moment", "text", moment),
        Column("statistics", "text", statistics),
        Column("step", "int", step, optional=True),
        Column("task", "int", task),
        Column("scored_task", "int", scored),
        Column("accuracy", "float", accuracy),
    ]
    about = {"schema": CURVES_SCHEMA, "spec": result["spec"], "versions": result["versions"]}
    return parquet(columns, {f"dualcba.{k}": json.dumps(v) for k, v in about.items()})


def _anytime(curves: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the accuracy of each task so far at each any-time evaluation."""
    for statistics, points in curves.items():
        if statistics in ("step", "task") or not points:
            continue
        for step, task, accuracies in zip(curves["step"], curves["task"], points, strict=True):
            for scored, accuracy in enumerate(accuracies):
                yield "anytime", statistics, step, task, scored, accuracy


def _task_ends(matrices: Mapping[str, Any], ends: Sequence[int]) -> Iterator[Row]:
    """Yield the accuracy of each task at the end of each task.

    Results of earlier versions do not have the steps.
    """
    steps = dict(enumerate(ends))
    for statistics, matrix in matrices.items():
        for task, accuracies in enumerate(matrix):
            for scored, accuracy in enumerate(accuracies):
                yield "task end", statistics, steps.get(task), task, scored, accuracy
