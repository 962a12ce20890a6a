"""Measure the cost of a step by tasks, classes, memory, image size and length of the stream.

usage: python -m benchmarks.growth [--network mlp] [--parts tasks,stream,classes,buffer,size]

Learners that differ in one property are timed in turns; ratios are relative to the first. `stream`
measures the resident memory of a learner during a stream of a million 8x8 images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sidebyside import append
from dualcba import Learner
from dualcba.bench.command import command, versions
from dualcba.bench.ours import Ours
from dualcba.bench.setup import Setup
from dualcba.bench.timing import time_in_turns

METHODS = ("er", "er-dual-cba")
TASKS = 10


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def turns(work: Mapping[str, Callable[[], None]], steps: int, rounds: int) -> dict[str, Any]:
    """Time functions in turns; return milliseconds per step and the ratio to the first."""
    watches = time_in_turns(work, rounds, units=steps)
    first = next(iter(watches.values()))
    return {
        name: {
            "ms_per_step": round(1e3 * watch.median, 4),
            "ratio_to_first": round(watch.ratio(first), 3),
        }
        for name, watch in watches.items()
    }


def endless(contender: Ours, k: int, steps: int) -> Callable[[], None]:
    """Return a function that makes the next `steps` steps, from batch k on."""
    at = k

    def work() -> None:
        nonlocal at
        for i in range(at, at + steps):
            contender.step(i)
        at += steps

    return work


def over(field: str, values: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """Time learners that differ in one field of the setup, each with a full memory."""
    out = {}
    for method in METHODS:
        work = {}
        for value in values:
            small = {"size": 8, "channels": 1, "classes": 10, "pad": 1}
            base = small if field == "buffer" else {}
            setup = Setup(network=args.network, **{**base, field: value})
            fill = setup.first + max(10, setup.buffer // setup.batch + 1)
            ours = Ours(setup, method)
            for k in range(fill):
                ours.step(k)
            work[str(value)] = endless(ours, fill + -fill % 5 + setup.first % 5, args.steps)
        out[method] = turns(work, args.steps, args.rounds)
    return out


def tasks(args: argparse.Namespace) -> dict[str, Any]:
    """Time learners in the first, the second and the last task."""
    out = {}
    for method in METHODS:
        work = {str(t + 1): _in_task(t, method, args) for t in (0, 1, TASKS - 1)}
        out[method] = turns(work, args.steps, args.rounds)
    return out


def _in_task(last: int, method: str, args: argparse.Namespace) -> Callable[[], None]:
    setup = Setup(network=args.network, size=args.side, channels=args.channels)
    learner = Ours(setup, method).learner
    per_task = setup.classes // TASKS

    def train(task: int, steps: int) -> None:
        rows = (setup.y // per_task == task).nonzero().squeeze(1)
        for k in range(steps):
            part = rows[torch.arange(k * setup.batch, (k + 1) * setup.batch) % len(rows)]
            learner.observe_on_device(setup.x[part], setup.y[part])

    for task in range(last + 1):
        learner.new_task(range(task * per_task, (task + 1) * per_task))
        train(task, 10)
    return lambda: train(last, args.steps)


def stream(args: argparse.Namespace) -> dict[str, Any]:
    """Return the resident memory at ten points of a long stream of 8x8 images."""
    torch.manual_seed(0)
    setup = Setup(size=8, channels=1, classes=10)
    learner: Learner = Ours(setup, "er-dual-cba").learner
    rng = np.random.default_rng(0)
    batches = args.samples // setup.batch
    points: list[dict[str, float]] = []
    for k in range(batches):
        if k % (batches // 5) == 0 and learner.task < 4:
            learner.new_task([2 * learner.task + 2, 2 * learner.task + 3])
        x = rng.integers(0, 256, (setup.batch, 1, 8, 8), dtype=np.uint8)
        learner.observe(x, 2 * learner.task + rng.integers(0, 2, setup.batch))
        if (k + 1) % (batches // 10) == 0:
            points.append({"samples": (k + 1) * setup.batch, "mib": round(resident(), 2)})
    first, last = points[0]["mib"], points[-1]["mib"]
    return {"points": points, "last_over_first": round(last / first, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--network", default="mlp", choices=["mlp", "resnet18-slim", "resnet18"])
    parser.add_argument("--parts", default="tasks,stream,classes,buffer,size")
    parser.add_argument("--side", type=int, default=32, help="of the images, for the tasks")
    parser.add_argument("--channels", type=int, default=3, help="of the images, for the tasks")
    parser.add_argument("--steps", type=int, default=20, help="per round; a multiple of 5")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=1_000_000, help="of the long stream")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    args = parser.parse_args()
    known: dict[str, Callable[[], dict[str, Any]]] = {
        "tasks": lambda: tasks(args),
        "stream": lambda: stream(args),
        "classes": lambda: over("classes", [10, 100, 1000], args),
        "buffer": lambda: over("buffer", [200, 2000, 20000], args),
        "size": lambda: over("size", [8, 16, 32, 64], args),
    }
    parts: dict[str, Any] = {}
    for name in args.parts.split(","):
        if name not in known:
            parser.error(f"--parts: unknown {name!r}, expected some of {', '.join(known)}")
        parts[name] = known[name]()
        print(name, parts[name], flush=True)
    if args.json:
        append(
            args.json,
            {
                "command": command("python -m benchmarks.growth"),
                "machine": args.machine,
                "threads": torch.get_num_threads(),
                "versions": versions("dualcba", "torch", "numpy"),
                "network": args.network,
                **parts,
            },
        )


if __name__ == "__main__":
    main()
