"""Time a learner's step and its evaluation on this machine, on made-up images.

usage: python -m benchmarks.step [--methods er,er-dual-cba] [--network resnet18] [--device auto]

Prints one row per method and engine: median milliseconds per step, microseconds per evaluated
image, and seconds until the first step. Ratios are to the first row.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dualcba import from_arrays
from dualcba.data import disjoint
from dualcba.evaluation import Evaluator
from dualcba.experiments import Hardware, Spec, make_learner


def synthetic(classes: int = 100, train: int = 2000, test: int = 5000):
    rng = np.random.default_rng(0)

    def images(n: int) -> np.ndarray:
        return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)

    return from_arrays(
        images(train), np.arange(train) % classes, images(test), np.arange(test) % classes,
        num_classes=classes, pad=4, flip=True, name="synthetic",
    )  # fmt: skip


def measure(spec: Spec, hardware: Hardware, data, steps: int) -> dict[str, float]:
    start = time.perf_counter()
    learner = make_learner(spec, data, hardware)
    sync = torch.cuda.synchronize if learner.device.type == "cuda" else (lambda: None)
    x, y = data.train_x.to(learner.device), data.train_y.to(learner.device)
    stream = disjoint(data, spec.tasks)
    first = torch.from_numpy(stream[0].train[:32]).to(learner.device)
    sync()
    learner.new_task(stream[0].classes)
    for _ in range(12):
        learner.learn(x[first], y[first])
    learner.new_task(stream[1].classes)
    rows = torch.from_numpy(stream[1].train[:32]).to(learner.device)
    for _ in range(30):
        learner.learn(x[rows], y[rows])
    sync()
    ready = time.perf_counter() - start
    times = []
    for _ in range(5):
        sync()
        begun = time.perf_counter()
        for _ in range(steps // 5):
            learner.learn(x[rows], y[rows])
        sync()
        times.append((time.perf_counter() - begun) / (steps // 5))
    evaluator = Evaluator(learner, data, stream)
    for _ in range(4):
        learner._incremental_step = -1  # estimate anew, as after a step
        evaluator.evaluate("end")
    sync()
    out = {"step": 1e3 * float(np.median(times)), "ready": ready}
    for norm in ("bn", "ibn"):
        begun = time.perf_counter()
        for _ in range(3):
            learner._incremental_step = -1
            with learner.evaluating(norm):
                evaluator._correct(spec.tasks)
        sync()
        out[norm] = 1e6 * (time.perf_counter() - begun) / (3 * len(data.test_x))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="er,er-cba,er-dual-cba")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engines", default="auto")
    parser.add_argument("--precisions", default="auto")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    data = synthetic()
    table = Table(title=f"{args.network}, batch 32 + 32, memory 2000, 100 classes")
    titles = "method engine precision ms/step ratio µs/image-BN µs/image-IBN ready-s"
    for title in titles.split():
        table.add_column(title, justify="right")
    base = None
    for engine in args.engines.split(","):
        for precision in args.precisions.split(","):
            for method in args.methods.split(","):
                spec = Spec(dataset="cifar100", method=method, network=args.network)
                m = measure(spec, Hardware(args.device, engine, precision), data, args.steps)
                base = base or m["step"]
                table.add_row(
                    method, engine, precision, f"{m['step']:.2f}", f"{m['step'] / base:.2f}",
                    f"{m['bn']:.1f}", f"{m['ibn']:.1f}", f"{m['ready']:.1f}",
                )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
