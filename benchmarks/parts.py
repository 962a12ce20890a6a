"""Measure the share of each part of a step on a CPU.

usage: python -m benchmarks.parts [--methods er,er-dual-cba] [--size 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.sidebyside import append
from dualcba.bench.command import about, command
from dualcba.bench.ours import Ours
from dualcba.bench.setup import Setup


def clocked(contender: Ours, steps: int) -> dict[str, float]:
    """Return the percentage of a step's time in each part; `between` is Python code around them."""
    spent: Counter[str] = Counter()
    depth = 0

    def watch(owner: Any, name: str, part: str) -> None:
        work = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            start = time.perf_counter()
            out = work(*args, **kwargs)
            depth -= 1
            if depth == 0:
                spent[part] += time.perf_counter() - start
            return out

        setattr(owner, name, timed)

    learner, parts = contender.learner, contender.learner.parts
    for owner, name, part in (
        (parts.sampler, "draw", "draws"), (parts.forward_pass, "augmented", "augmentation"),
        (parts.forward_pass, "through", "forward"), (learner.method, "loss", "loss"),
        (parts.outer_loop, "adapt", "adaptor"), (parts.outer_loop, "step", "outer step"),
        (torch.Tensor, "backward", "backward"), (parts.optimizer, "step", "optimiser"),
        (parts.optimizer, "zero_grad", "optimiser"), (learner.memory, "write", "memory"),
        (learner.memory, "read", "memory"), (learner.class_sets, "appear", "masks of classes"),
    ):  # fmt: skip
        watch(owner, name, part)
    begun = time.perf_counter()
    first = contender.setup.first + 2 * contender.setup.outer_every
    for k in range(first, first + steps):
        contender.step(k)
    total = time.perf_counter() - begun
    shares = {part: round(100 * took / total, 1) for part, took in spent.most_common()}
    return shares | {"between": round(100 * (1 - spent.total() / total), 1)}


def measure(method: str, setup: Setup, steps: int) -> dict[str, float]:
    """Return the shares for one method after its first steps."""
    contender = Ours(setup, method)
    for k in range(setup.first + 2 * setup.outer_every):
        contender.step(k)
    backward: Callable[..., None] = torch.Tensor.backward
    try:
        return clocked(contender, steps)
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts")
    parser.add_argument("--methods", default="er,er-dual-cba")
    parser.add_argument("--size", type=int, default=8, help="side of the images")
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    args = parser.parse_args()
    setup = Setup(size=args.size, channels=args.channels, classes=args.classes)
    shares = {m: measure(m, setup, args.steps) for m in args.methods.split(",")}
    for method, parts in shares.items():
        print(method, *(f"{part} {share} %" for part, share in parts.items()), sep="\n  ")
    if args.json:
        said = {"command": command("python -m benchmarks.parts"), "commit": args.commit}
        append(args.json, about(setup) | said | {"machine": args.machine, "percent": shares})


if __name__ == "__main__":
    main()
