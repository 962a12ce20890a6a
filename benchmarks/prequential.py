"""Predict after each step: the time under IBN relative to BN, and the effect of partial refresh.

usage: python -m benchmarks.prequential [--parts time,accuracy] [--seeds 5] [--json FILE]

`time` times loops of `predict` and `observe` in turns with a full memory, on synthetic data: an MLP
with a memory of 5000, and a small CNN on 3x128x128 with a memory of 1000. `accuracy` learns the
same stream under BN statistics, IBN statistics from parts of the memory, and IBN statistics from
the whole memory (`ibn_refresh`). Training is the same, so all differences are due to the
statistics.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.sidebyside import append
from dualcba import Learner, load_dataset
from dualcba.bench.command import command, versions
from dualcba.bench.timing import take_turns
from dualcba.data import Dataset, disjoint
from dualcba.nets import make_network
from dualcba.randomness import first_weights

WAYS: dict[str, dict[str, Any]] = {
    "bn": {"ibn": False},
    "parts": {"ibn": True, "ibn_refresh": "parts"},
    "full": {"ibn": True, "ibn_refresh": "full"},
}
CASES = {"mlp": ((1, 8, 8), 5000), "cnn": ((3, 128, 128), 1000)}
STUDENT = {5: 2.776, 10: 2.262}  # 95 % quantiles by number of seeds


def small_cnn(outputs: int = 10) -> nn.Module:
    """Return three convolutions with stride 2, each with batch normalisation, and a last layer."""
    layers: list[nn.Module] = []
    for inputs, width in ((3, 16), (16, 32), (32, 64)):
        conv = nn.Conv2d(inputs, width, 3, stride=2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs))
    return nn.Sequential(*layers, *pool)


def loop(case: str, way: str, batch: int, steps: int) -> Callable[[], None]:
    """Return a function that predicts and learns `steps` batches, with a full memory."""
    shape, size = CASES[case]
    with first_weights(0):
        network = make_network("mlp", shape, 10) if case == "mlp" else small_cnn()
    learner = Learner(
        network, shape, 10, method="er-dual-cba", buffer=size, batch_size=batch, device="cpu",
        **WAYS[way],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (100, *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(5, 10, 100))
    for first in (5, 0):  # the adaptor is updated from the second task on
        learner.new_task(range(5 - first, 10 - first))
        for _ in range(size // 200 + 1):
            learner.observe(x, y - first)
    assert learner.memory.filled == size

    def work() -> None:
        for k in range(steps):
            rows = slice(k * batch % 80, k * batch % 80 + batch)
            learner.predict(x[rows])
            learner.observe(x[rows], y[rows])

    return work


def times(args: argparse.Namespace) -> dict[str, Any]:
    """Return CPU milliseconds per step and prediction, and ratios to BN, by case and way."""
    out: dict[str, Any] = {}
    for case, steps, rounds in (("mlp", 40, args.rounds), ("cnn", 8, max(3, args.rounds // 2))):
        work = {way: loop(case, way, 10, steps) for way in ("bn", "parts")}
        spent = cpu_seconds(work, rounds, steps)
        spent["full"] = cpu_seconds({"full": loop(case, "full", 10, 2)}, 1, 2)["full"] * rounds
        out[case] = {"shape": CASES[case][0], "buffer": CASES[case][1], "batch": 10}
        for way, found in spent.items():
            ratio = float(np.median(np.array(found) / np.array(spent["bn"])))
            ms = round(1e3 * float(np.median(found)), 3)
            out[case][way] = {"cpu_ms": ms, "ratio_to_bn": round(ratio, 3)}
    return out


def cpu_seconds(
    work: dict[str, Callable[[], None]], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Time functions in turns; return CPU seconds per step of each round, after a warm-up round.

    CPU time of one thread, since wall-clock time depends on other load of the machine.
    """
    spent: dict[str, list[float]] = {name: [] for name in work}

    def timed(name: str) -> None:
        start = time.process_time()
        work[name]()
        spent[name].append((time.process_time() - start) / steps)

    for _ in take_turns([partial(timed, name) for name in work], rounds + (rounds > 1)):
        pass
    return {name: found[-rounds:] for name, found in spent.items()}


def learn(data: Dataset, way: str, seed: int, buffer: int, method: str) -> tuple[float, float]:
    """Return the accuracy of predictions before each step, and at the end, in percent."""
    shape, classes = tuple(data.train_x.shape[1:]), data.num_classes
    with first_weights(seed):
        network = make_network("mlp", shape, classes)
    learner = Learner(
        network, shape, classes, method=method, buffer=buffer, batch_size=10, seed=seed,
        transform=data.transform(), dtype=data.train_x.dtype, device="cpu", seen_only=True,
        **WAYS[way],
    )  # fmt: skip
    rng, right, asked = np.random.default_rng(seed), 0, 0
    for task in disjoint(data, 5):
        learner.new_task(task.classes)
        rows = torch.from_numpy(rng.permutation(task.train))
        for part in rows.split(10):
            x, y = data.train_x[part], data.train_y[part]
            right, asked = right + int((learner.predict(x) == y).sum()), asked + len(y)
            learner.observe(x, y)
    final = (learner.predict(data.test_x) == data.test_y).double().mean()
    return 100 * right / asked, 100 * float(final)


def accuracies(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return accuracies, and differences to IBN from the whole memory with a 95 % interval."""
    data, rows = load_dataset(args.dataset, root=args.data_dir), []
    data = _shortened(data, args.samples)
    for method in args.methods.split(","):
        for buffer in args.buffers:
            scores = {
                way: np.array([learn(data, way, s, buffer, method) for s in range(args.seeds)])
                for way in WAYS
            }
            row = {"dataset": args.dataset, "method": method, "buffer": buffer}
            rows.append({**row, "seeds": args.seeds, **_compared(scores)})
            print(rows[-1], flush=True)
    return rows


def _shortened(data: Dataset, samples: int | None) -> Dataset:
    if samples is None:
        return data
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(data.train_y))[:samples])
    return replace(data, train_x=data.train_x[rows], train_y=data.train_y[rows])


def _compared(scores: dict[str, np.ndarray]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for k, name in enumerate(("prequential", "final")):
        for way, values in scores.items():
            lost = values[:, k] - scores["full"][:, k]
            t = STUDENT[len(lost)] * lost.std(ddof=1) / len(lost) ** 0.5
            out[f"{name}_{way}"] = round(float(values[:, k].mean()), 2)
            if way != "full":
                out[f"{name}_{way}_minus_full"] = [round(float(lost.mean()), 2), round(float(t), 2)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prequential")
    parser.add_argument("--parts", default="time,accuracy")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--samples", type=int, help="training samples, by default all")
    parser.add_argument("--methods", default="er-dual-cba,er-balanced-cba")
    parser.add_argument("--buffers", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--seeds", type=int, default=5, choices=STUDENT)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    args = parser.parse_args()
    known = {"time": partial(times, args), "accuracy": partial(accuracies, args)}
    torch.set_num_threads(1)
    parts: dict[str, Any] = {}
    for name in args.parts.split(","):
        if name not in known:
            parser.error(f"--parts: unknown {name!r}, expected some of {', '.join(known)}")
        parts[name] = known[name]()
        print(name, parts[name], flush=True)
    if args.json:
        about = {
            "command": command("python -m benchmarks.prequential"),
            "machine": args.machine,
            "threads": torch.get_num_threads(),
            "versions": versions("dualcba", "torch", "numpy"),
        }
        append(args.json, {**about, **parts})


if __name__ == "__main__":
    main()
