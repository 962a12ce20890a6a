"""Compare learners over a frozen network that store features or images in the memory.

usage: python -m benchmarks.cached [--network resnet18-slim] [--side 64] [--methods er,er-dual-cba]

Both train the last layer on the same batches, in turns. The ratio is the time of a step with images
over that with features.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.sidebyside import append
from benchmarks.torchvision_operators import define_missing
from dualcba import Learner
from dualcba.bench.command import command, versions
from dualcba.bench.timing import time_in_turns
from dualcba.nets import freeze, make_network

CLASSES = 10


def learner(method: str, args: argparse.Namespace, *, cached: bool) -> Learner:
    """Return a learner over a frozen network with random weights."""
    torch.manual_seed(0)
    shape = (3, args.side, args.side)
    network = freeze(make_network(args.network, shape, CLASSES))
    return Learner(
        network, shape, CLASSES, method=method, buffer=args.buffer, batch_size=args.batch,
        cache_features=cached, augmentation="none", device=args.device,
    )  # fmt: skip


def steps(one: Learner, args: argparse.Namespace) -> Callable[[], None]:
    """Return a function that makes some steps, after the memory has been filled."""
    torch.manual_seed(1)
    batches = 1 + args.buffer // args.batch
    x = torch.randint(0, 256, (batches, args.batch, *one.input_shape), dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (batches, args.batch))
    for classes in (range(CLASSES // 2), range(CLASSES // 2, CLASSES)):
        one.new_task(classes)
        for k in range(batches):
            one.observe(x[k], y[k] % (CLASSES // 2) + classes[0])

    def work() -> None:
        for k in range(args.steps):
            one.observe(x[k % batches], y[k % batches] % (CLASSES // 2) + CLASSES // 2)

    return work


def measure(method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the time of a step with images and with features in the memory, and their ratio."""
    both = {cached: learner(method, args, cached=cached) for cached in (False, True)}
    watches = time_in_turns(
        {cached: steps(one, args) for cached, one in both.items()}, args.rounds, args.device,
        args.steps,
    )  # fmt: skip
    return {
        "method": method,
        "ms_per_step_images": round(1e3 * watches[False].median, 3),
        "ms_per_step_features": round(1e3 * watches[True].median, 3),
        "ratio": round(watches[False].ratio(watches[True]), 2),
        "memory_bytes_images": both[False].memory.x.nbytes,
        "memory_bytes_features": both[True].memory.x.nbytes,
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cached")
    parser.add_argument("--network", default="resnet18-slim")
    parser.add_argument("--side", type=int, default=64, help="of the images")
    parser.add_argument("--methods", default="er,er-dual-cba")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--buffer", type=int, default=50)
    parser.add_argument("--steps", type=int, default=5, help="per round; a multiple of 5")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    args = parser.parse_args(words)
    if args.network.startswith("timm:"):
        define_missing()
    rows = []
    for method in args.methods.split(","):
        rows.append(measure(method, args))
        print(rows[-1], flush=True)
    if args.json:
        append(
            args.json,
            {
                "command": command("python -m benchmarks.cached"),
                "commit": args.commit,
                "machine": args.machine,
                "threads": torch.get_num_threads(),
                "versions": versions("dualcba", "torch", "numpy", "timm"),
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main()
