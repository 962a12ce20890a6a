"""The loss of accuracy of a learner that does not know the number of classes in advance.

usage: python -m benchmarks.unannounced [--dataset cifar100] [--buffer 2000] [--network resnet18]
           [--lr 0.03] [--methods er,er-dual-cba] [--tasks 10] [--seeds 5] [--jobs 1]
           [--json FILE --commit HASH]

Each seed has a stream of tasks with its own order of classes. One learner knows the number of
classes from the start. The other begins with two outputs, gets names as labels, and grows. Both
infer the tasks, get the same batches, and predict only seen classes. The weights of their outputs
are drawn at different times and differ like those of two seeds. The table has the accuracy on the
test data at the end, and the difference on common seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.step import print_rows
from dualcba import Learner
from dualcba.bench.command import command, machine, versions
from dualcba.bench.timing import seconds
from dualcba.data import Dataset
from dualcba.data.loading import load_dataset
from dualcba.engine import resolve_device
from dualcba.evaluation import interval
from dualcba.io import write_json
from dualcba.nets import make_network


def batches(data: Dataset, tasks: int, size: int, seed: int) -> Iterator[Any]:
    """Yield the indices of each batch; the order of classes and samples depends on the seed."""
    rng = np.random.default_rng(seed)
    labels = np.asarray(data.train_y)
    for classes in np.array_split(rng.permutation(data.num_classes), tasks):
        order = rng.permutation(np.flatnonzero(np.isin(labels, classes)))
        yield from np.array_split(order, max(1, len(order) // size))


def learn(args: argparse.Namespace, one: tuple[str, int, bool]) -> dict[str, Any]:
    """Return the accuracy of one learner and its time."""
    method, seed, knows = one
    data = load_dataset(args.dataset, args.data_dir)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    outputs = data.num_classes if knows else 2
    learner = Learner(
        make_network(args.network, data.input_shape, outputs), data.input_shape,
        data.num_classes if knows else None, method=method, buffer=args.buffer, lr=args.lr,
        batch_size=args.batch_size, transform=data.transform(), dtype=data.train_x.dtype,
        boundaries="inferred", seen_only=True, device=args.device, seed=seed,
    )  # fmt: skip
    labels = np.asarray(data.train_y)
    names = np.array([f"class {k}" for k in range(data.num_classes)])

    def feed() -> None:
        for rows in batches(data, args.tasks, args.batch_size, seed):
            y = labels[rows] if knows else names[labels[rows]]
            learner.observe(data.train_x[rows], y)

    took = seconds(feed, learner.device)
    answers = np.asarray(learner.predict(data.test_x))
    true = np.asarray(data.test_y) if knows else names[np.asarray(data.test_y)]
    return {"acc": 100 * float(np.mean(answers == true)), "seconds": round(took, 2)}


def table(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per method, with the values of all seeds."""
    runs = list(product(args.methods, range(args.seeds), (True, False)))
    if args.jobs == 1:
        found = list(map(partial(learn, args), runs))
    else:
        with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
            found = list(pool.map(partial(learn, args), runs))
    by_run = dict(zip(runs, found, strict=True))
    rows = []
    for method in args.methods:
        known, grown = (
            [by_run[method, s, knows] for s in range(args.seeds)] for knows in (True, False)
        )
        pairs = zip(grown, known, strict=True)
        difference, half = interval([a["acc"] - b["acc"] for a, b in pairs])
        rows.append({
            "method": method,
            "announced": round(interval([r["acc"] for r in known])[0], 2),
            "unannounced": round(interval([r["acc"] for r in grown])[0], 2),
            "difference": round(difference, 2),
            "half": None if half is None else round(half, 2),
            "seconds": [float(np.median([r["seconds"] for r in g])) for g in (known, grown)],
            "values": {"announced": known, "unannounced": grown},
        })  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unannounced")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--network", default="mlp")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["er"])
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args(arguments)
    rows = table(args)
    shown = [{k: v for k, v in row.items() if k != "values"} for row in rows]
    print_rows(f"{args.dataset}, {args.seeds} seeds, accuracy at the end", shown)
    found = {
        "command": command("python -m benchmarks.unannounced"), "commit": args.commit,
        "machine": machine(str(resolve_device(args.device))),
        "versions": versions("dualcba", "torch", "triton"), "rows": rows,
    }  # fmt: skip
    if args.json:
        write_json(args.json, found)


if __name__ == "__main__":
    main()
