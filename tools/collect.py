"""Collect the results below a folder of runs into one file for `results/`.

usage: python -m tools.collect RUNS OUT --command "dualcba run …" --commit HASH

Each row is a group of runs that differ only by seed: mean, half-width of the 95 % interval, the
seeds, every run's own scores, and its accuracy of each task at the end. Recordings and any-time
curves are left out. A class-agnostic part that came from another dataset's run of the
same seed is `from` that dataset, as in the catalogue.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dualcba.evaluation import STATISTICS, interval
from dualcba.experiments import read_results
from dualcba.experiments.paper.catalogue import seedless


def measured(values: list[float | None]) -> dict[str, Any] | None:
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    mean, half = interval(known)
    rounded = None if half is None else round(half, 3)
    return {"mean": round(mean, 3), "half": rounded, "values": [round(v, 3) for v in known]}


def row(group: list[dict[str, Any]]) -> dict[str, Any]:
    group = sorted(group, key=lambda r: r["seed"])
    seeds = [r["seed"] for r in group]
    spec = seedless(group[0]["spec"])
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{spec['method']} has seeds {seeds}, expected each once")
    scores = {
        norm: {
            name: measured([r["scores"][norm].get(name) for r in group])
            for name in group[0]["scores"][norm]
        }
        for norm in STATISTICS
    }
    tasks = {
        norm: [[round(v, 3) for v in r["accuracy_matrix"][norm][-1]] for r in group]
        for norm in STATISTICS
    }
    return {
        "method": spec["method"],
        "seeds": seeds,
        "scores": scores,
        "tasks": tasks,
        "seconds": [round(r["seconds"]["total"], 2) for r in group],
        "spec": spec,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True, action="append")
    parser.add_argument("--commit", required=True)
    args = parser.parse_args()
    groups: dict[str, list[dict[str, Any]]] = {}
    folders = sorted({args.runs, *args.runs.glob("*/")})
    results = [result for folder in folders for result in read_results(folder)]
    if not results:
        sys.exit(f"error: {args.runs} holds no complete run, expected a folder of runs")
    for result in results:
        groups.setdefault(json.dumps(seedless(result["spec"]), sort_keys=True), []).append(result)
    try:
        rows = [row(group) for group in groups.values()]
    except ValueError as error:
        sys.exit(f"error: {error}")
    content = {
        "command": args.command,
        "commit": args.commit,
        "versions": results[0]["versions"],
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
