"""Collect the results below a folder of runs into one file for `results/`.

usage: python -m benchmarks.collect RUNS OUT --command "dualcba run …" --commit HASH

Each row is a group of runs that differ only by seed: mean, half-width of the 95 % interval, the
seeds, every run's own scores, and accuracy of each task at the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dualcba.evaluation import NORMS, interval
from dualcba.experiments import read_results


def key(result: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in result["spec"].items() if k != "seed"}, sort_keys=True)


def row(group: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {k: v for k, v in group[0]["spec"].items() if k != "seed"}
    scores: dict[str, Any] = {}
    for norm in NORMS:
        scores[norm] = {}
        for name in group[0]["scores"][norm]:
            values = [r["scores"][norm][name] for r in group]
            if any(v is None for v in values):
                scores[norm][name] = None
                continue
            mean, half = interval(values)
            rounded = None if half is None else round(half, 3)
            scores[norm][name] = {
                "mean": round(mean, 3), "half": rounded, "values": [round(v, 3) for v in values],
            }  # fmt: skip
    return {
        "method": spec["method"],
        "seeds": [r["seed"] for r in group],
        "scores": scores,
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
    for result in results:
        groups.setdefault(key(result), []).append(result)
    content = {
        "command": args.command,
        "commit": args.commit,
        "versions": results[0]["versions"],
        "rows": [row(group) for group in groups.values()],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
