"""What a checkpoint costs: the time it takes from the steps, and the time to write it.

    python -m benchmarks.checkpoints --method er-dual-cba --network resnet18 --buffer 2000

Bursts of steps with one checkpoint and without take turns. The difference of their medians is the
cost of one checkpoint; divided by a minute it is the cost of one every minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learners import synthetic
from dualcba.experiments import Hardware, Run, Spec
from dualcba.experiments.checkpoints import Keeper, checkpoint_paths, take_snapshot
from dualcba.options.values import Interval

NEVER = Interval(seconds=1e9)


def measure(spec: Spec, hardware: Hardware, *, burst: int, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of one checkpoint on the steps, of its copy and of its file."""
    size = spec.batch_size * burst * (2 * rounds + 3)
    run = Run(spec, synthetic(classes=100, train=size, test=200, shape=(3, 32, 32)), hardware)
    steps = run.steps()
    _take(steps, burst, run)  # captures the graphs
    spent: dict[bool, list[float]] = {False: [], True: []}
    copies: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(run, Path(folder), NEVER, print)
        keeper.save_now()  # the first copy allocates pinned memory
        for k in range(2 * rounds):
            if k % 2:
                keeper._due_at = 0.0
            spent[bool(k % 2)].append(_take(steps, burst, run, keeper))
        keeper.close()
        megabytes = checkpoint_paths(Path(folder))[0].stat().st_size / 1e6
        write = _milliseconds(keeper.save_now)
        for _ in range(5):
            copies.append(_milliseconds(lambda: take_snapshot(run)))
            run.engine.finish()
    cost = float(np.median(spent[True]) - np.median(spent[False]))
    return {
        "method": spec.method,
        "network": spec.network,
        "megabytes": round(megabytes, 1),
        "ms_per_step": round(1e3 * float(np.median(spent[False])) / burst, 4),
        "ms_of_steps_per_checkpoint": round(1e3 * cost, 2),
        "percent_once_a_minute": round(100 * cost / 60, 4),
        "ms_of_the_copy_on_the_host": round(float(np.median(copies)), 2),
        "ms_until_written": round(write, 1),
    }


def _take(steps: Iterator[int], count: int, run: Run, keeper: Keeper | None = None) -> float:
    """Take some steps; return the seconds until the device has done them."""
    begun = time.perf_counter()
    for _ in range(count):
        next(steps)
        if keeper is not None:
            keeper.after_step()
    run.engine.finish()
    return time.perf_counter() - begun


def _milliseconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begun)


def main() -> None:
    """Print one line of JSON per method."""
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--method", default="er,er-dual-cba")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--buffer", type=int, default=2000)
    parser.add_argument("--burst", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    for method in args.method.split(","):
        spec = Spec(
            dataset="cifar100", method=method, network=args.network, buffer=args.buffer,
            eval_every=0, tasks=1,
        )  # fmt: skip
        hardware = Hardware(device=args.device)
        print(json.dumps(measure(spec, hardware, burst=args.burst, rounds=args.rounds)), flush=True)


if __name__ == "__main__":
    main()
