"""Collect the results below a folder of runs into one file for `results/`.

usage: python -m tools.collect RUNS OUT --command "dualcba run …" --commit HASH

Each row is a group of runs that differ only by seed: mean, half-width of the 95 % interval, the
seeds, every run's own scores, and its accuracy of each task at the end. Recordings and any-time
curves are left out. If each seed loaded a class-agnostic part from a run with its own seed, the row
records that run without the seed and the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from dualcba.evaluation import interval
from dualcba.experiments import Result, read_results
from dualcba.experiments.result import SCHEMA
from dualcba.report.names import STATISTICS
from dualcba.report.results import Grouping


def measured(values: list[float | None]) -> dict[str, Any] | None:
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    mean, half = interval(known)
    rounded = None if half is None else round(half, 3)
    return {"mean": round(mean, 3), "half": rounded, "values": [round(v, 3) for v in known]}


def row(group: list[Result]) -> dict[str, Any]:
    group = sorted(group, key=lambda r: r.seed)
    first, seeds = group[0], [r.seed for r in group]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{first.method} has seeds {seeds}, expected each once")
    scores = {
        statistics: {name: measured([r.value(statistics, name) for r in group]) for name in found}
        for statistics, found in first.scores.items()
    }
    tasks = {
        statistics: [[round(v, 3) for v in r.accuracy_matrix[statistics][-1]] for r in group]
        for statistics in STATISTICS
    }
    origin = Grouping(group).origin(first)
    spec = {name: value for name, value in first.fields.items() if name != "seed"}
    return {
        "method": first.method,
        "seeds": seeds,
        "scores": scores,
        "tasks": tasks,
        "seconds": [round(r.seconds["total"], 2) for r in group],
        "spec": spec if origin is None else spec | {"agnostic_from": None},
        "agnostic_provenance": origin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True, action="append")
    parser.add_argument("--commit", required=True)
    args = parser.parse_args()
    folders = sorted({args.runs, *args.runs.glob("*/")})
    results = [result for folder in folders for result in read_results(folder).values()]
    if not results:
        sys.exit(f"error: {args.runs} holds no complete run, expected a folder of runs")
    grouping, groups = Grouping(results), dict[Hashable, list[Result]]()
    for result in results:
        groups.setdefault(grouping.key(result), []).append(result)
    try:
        rows = [row(group) for group in groups.values()]
    except ValueError as error:
        sys.exit(f"error: {error}")
    content = {
        "schema": SCHEMA,
        "command": args.command,
        "commit": args.commit,
        "versions": dict(results[0].versions),
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
