"""An experiment's rows as JSON data, for `--json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.result import Result
from dualcba.report.comparison import NEWEST, Measure, measured, rows, serve
from dualcba.report.gains import gains


def experiment_data(experiment: Experiment, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a record per entry: the paper's or published values, our means and half-widths."""
    served = serve(experiment, results)
    found = {(g.dual, g.column): g for g in gains(served)} if "acc" in experiment.scores else {}
    out = []
    scores = [*experiment.scores, *measured(served, NEWEST)]
    for one, row in zip(served, rows(served, scores), strict=True):
        head = {"row": row.row, "column": row.column, "statistics": row.statistics}
        data = {**head, row.beside: dict(one.entry.paper), "seeds": list(row.seeds)}
        data["ours"] = {
            "bn": {cell.score: _pair(cell.bn) for cell in row.cells},
            "ibn": {cell.score: _pair(cell.ibn) for cell in row.cells},
        }
        if gain := found.get((row.row, row.column)):
            data["gain"] = dataclasses.asdict(gain)
        out.append(data)
    return out


def _pair(m: Measure | None) -> tuple[float, float | None] | None:
    return None if m is None else (m.mean, m.half)
