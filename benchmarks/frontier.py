"""Time a step of each method of the frontier table relative to ER, in turns, on synthetic images.

usage: python -m benchmarks.frontier [--rows "ER; ER + MKD"] [--network resnet18] [--device auto]
           [--steps 10] [--turns 12] [--json FILE --commit HASH]

Prints one line per row of `dualcba reproduce frontier` (100 classes, M = 2000): median milliseconds
per step, the ratio to ER in the same turn with quartiles, and the largest accepted ratio. On a GPU,
steps are captured. By default it times each method alone, and ER, ER + MKD and GSA with Dual-CBA.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.abreast import in_turns
from benchmarks.learners import synthetic
from benchmarks.step import print_rows
from dualcba.bench.command import command, machine, versions
from dualcba.engine import resolve_device
from dualcba.errors import unknown
from dualcba.experiments import Hardware, Spec, experiments
from dualcba.io import write_json
from dualcba.options.values import titles

COLUMN = "CIFAR-100, M = 2000"
ADAPTED = ("ER, Dual-CBA", "ER + MKD, Dual-CBA", "GSA, Dual-CBA")
AT_MOST = {"ER + MKD": 2.5, "GSA": 2.8, "best": 3.0, "ER + CCL-DC, one network": 5.5}
"""The largest accepted ratios to ER."""


def frontier_specs() -> dict[str, Spec]:
    """Return the specs of the table by row."""
    return {e.row: e.spec for e in experiments()["frontier"].entries if e.column == COLUMN}


def chosen(asked: Sequence[str]) -> dict[str, Spec]:
    """Return the specs of some rows, or of the usual ones; ER is the first."""
    known = frontier_specs()
    for row in asked:
        if row not in known:
            raise SystemExit(f"error: {unknown('row', row, known)}")
    usual = [row for row, spec in known.items() if spec.adaptor is None or row in ADAPTED]
    return {row: known[row] for row in dict.fromkeys(["ER", *(asked or usual)])}


def measure(
    specs: dict[str, Spec], hardware: Hardware, *, steps: int, turns: int, images: int = 2000
) -> list[dict[str, Any]]:
    """Return a row of numbers for each spec."""
    found = in_turns(
        list(specs.values()), [hardware], synthetic(train=images, test=100), steps, turns
    )
    limits = [AT_MOST.get(row, "") for row in specs]
    return [
        {"row": row, **numbers, "at_most": limit}
        for row, numbers, limit in zip(specs, found, limits, strict=True)
    ]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier")
    parser.add_argument("--rows", type=titles, default=[], help="titles, separated by ;")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write the file."""
    args = options().parse_args(arguments)
    specs = {row: replace(s, network=args.network) for row, s in chosen(args.rows).items()}
    device = resolve_device(args.device)
    hardware = Hardware(device=args.device)
    rows = measure(specs, hardware, steps=args.steps, turns=args.turns)
    print_rows(f"a step under P10, {args.network}, 100 classes, M = 2000", rows)
    found = {
        "command": command("python -m benchmarks.frontier"), "commit": args.commit,
        "machine": machine(str(device)), "device": device.type,
        "threads": torch.get_num_threads(), "versions": versions("dualcba", "torch", "triton"),
        "network": args.network, "rows": rows,
    }  # fmt: skip
    if args.json:
        write_json(args.json, found)


if __name__ == "__main__":
    main()
