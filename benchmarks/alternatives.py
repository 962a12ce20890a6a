"""Compare Dual-CBA with common classifiers for streams: accuracy and latency on real data.

usage: python -m benchmarks.alternatives [--data digits,letter] [--only DualCBAClassifier,ER]
           [--orders classes,single,shuffled] [--validation] [--seeds 5] [--data-dir DIR]
           [--json FILE --commit HASH]

A stream arrives in batches of 10, in one pass: two new classes at a time (`classes`), one at a time
(`single`), or in random order (`shuffled`). Each batch is predicted, then learnt. `final` is the
accuracy on test samples after the stream, `prequential` the accuracy on arriving batches, and
`anytime` the mean accuracy on test samples of the classes so far, at ten moments. Times are medians
over batches of the CPU time of one thread, per sample. All features are scaled to [0, 1] by their
known range.

With `--validation`, stream and test samples are other training samples, to choose defaults with.

MNIST and Fashion-MNIST need their published files in the data folder, `letter` the file
`letter-recognition.data` of the UCI repository. Missing data are left out with a note, and so is
river if it is not installed. Set OMP_NUM_THREADS=1. `--json` adds the numbers to a file and
replaces those with the same names.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.alternative_models import (
    CONTENDERS,
    MEMORY,
    SEPARATE,
    Contender,
    Floats,
    Labels,
)
from dualcba.bench.command import command, machine, versions
from dualcba.data import data_dir, load_dataset
from dualcba.errors import unknown
from dualcba.evaluation import interval
from dualcba.io import write_json

BATCH, MOMENTS, TEST = 10, 10, 500
PER_TASK = {"classes": 2, "single": 1}
"""Number of classes per task, in orders that are not random."""
ORDERS = (*PER_TASK, "shuffled")
SCORES = ("final", "prequential", "anytime")
TIMES = ("learn_us", "predict_us")
SLOW = ("river naive Bayes", "river Hoeffding tree")
"""Contenders that need at least 10 ms per sample of 784 features, which are left out there."""
RIVER = [name for name in CONTENDERS if name.startswith("river")]


@dataclass(frozen=True)
class Data:
    """Training and test samples with features in [0, 1], and the contenders to leave out."""

    x: Floats
    y: Labels
    test_x: Floats
    test_y: Labels
    without: Sequence[str] = ()

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.y.max()) + 1


def known_dataset(name: str, root: Path, without: Sequence[str] = (), stream: int = 0) -> Data:
    """Return a dataset of images as vectors; `stream` is the number of samples, 0 for all."""
    data = load_dataset(name, root)
    x, test_x = (t.flatten(1).numpy().astype(np.float32) for t in (data.train_x, data.test_x))
    top = np.float32(x.max())
    y, test_y = data.train_y.numpy(), data.test_y.numpy()
    return Data(x[: stream or None] / top, y[: stream or None], test_x / top, test_y, without)


def letter(root: Path, *, validation: bool = False) -> Data:
    """Return 26 letters with 16 features: 2,600 training and the last 4,000 test samples.

    For validation, return 2,600 and 1,000 samples in between.
    """
    path = root / "letter-recognition.data"
    rows = [line.split(",") for line in path.read_text().split()]
    rows = [row for row in rows if row[0] != "Letter"]  # some copies have a header line
    x = np.asarray([row[1:] for row in rows], np.float32) / 15
    y = np.asarray([ord(row[0]) - ord("A") for row in rows], np.int64)
    if validation:
        return Data(x[3000:5600], y[3000:5600], x[6000:7000], y[6000:7000])
    return Data(x[:2600], y[:2600], x[16000:], y[16000:])


def among_training(name: str, root: Path, stream: int, start: int = 0) -> Data:
    """Return `stream` training samples after the first `start`, shuffled, and 600 for test."""
    data = known_dataset(name, root)
    rows = np.random.default_rng(0).permutation(len(data.y) - start) + start
    first, then = rows[:stream], rows[stream : stream + 600]
    return Data(data.x[first], data.y[first], data.x[then], data.y[then], RIVER)


READERS: dict[str, Callable[[Path], Data]] = {
    "digits": lambda root: known_dataset("digits", root),
    "letter": letter,
    "mnist-1000": lambda root: known_dataset("mnist", root, SLOW, 1000),
    "mnist": lambda root: known_dataset("mnist", root, RIVER, 2000),
    "fashion-mnist": lambda root: known_dataset("fashion-mnist", root, RIVER, 2000),
}
"""Datasets by name. Slow contenders run on a stream of 1,000 images."""

VALIDATION: dict[str, Callable[[Path], Data]] = {
    "digits": lambda root: among_training("digits", root, 1100),
    "letter": lambda root: letter(root, validation=True),
    "mnist": lambda root: among_training("mnist", root, 1500, 2000),
    "fashion-mnist": lambda root: among_training("fashion-mnist", root, 1500, 2000),
}
"""Training samples outside of the streams of `READERS`; digits has no others and reuses them."""


def arranged(data: Data, order: str, seed: int) -> Iterator[tuple[Floats, Labels]]:
    """Yield the batches of a stream; the order of classes and samples depends on the seed."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.y))
    if order in PER_TASK:
        place = rng.permutation(data.classes) // PER_TASK[order]  # the task of each class
        rows = rows[np.argsort(place[data.y[rows]], kind="stable")]
    for k in range(0, len(rows), BATCH):
        part = rows[k : k + BATCH]
        yield data.x[part], data.y[part]


def accuracy(model: Contender, x: Floats, y: Labels) -> float:
    return 100 * float((model.predict(x) == y).mean())


def run(name: str, data: Data, order: str, seed: int) -> dict[str, float]:
    """Return the scores and the times of a contender on one stream."""
    model = CONTENDERS[name](seed, data.classes)
    stream = list(arranged(data, order, seed))
    chosen = np.random.default_rng(seed).permutation(len(data.test_y))[:TEST]
    test_x, test_y = data.test_x[chosen], data.test_y[chosen]
    right, asked, anytime = 0, 0, []
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    moments = {round(len(stream) * (k + 1) / MOMENTS) - 1 for k in range(MOMENTS)}
    met: set[int] = set()
    for k, (x, y) in enumerate(stream):
        if k:
            answers, spent = timed(partial(model.predict, x))
            times["predict_us"].append(1e6 * spent / len(y))
            right, asked = right + int((answers == y).sum()), asked + len(y)
        times["learn_us"].append(1e6 * timed(partial(model.learn, x, y))[1] / len(y))
        met |= set(y.tolist())
        if k in moments:
            seen = np.isin(test_y, list(met))
            anytime.append(accuracy(model, test_x[seen], test_y[seen]))
    scores = (anytime[-1], 100 * right / asked, float(np.mean(anytime)))
    return dict(zip(SCORES, scores, strict=True)) | {k: median(v) for k, v in times.items()}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result and the CPU seconds of this process.

    With one thread, this is the latency on an idle core, independent of other load.
    """
    begun = time.process_time()
    result = work()
    return result, time.process_time() - begun


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return mean and half-width of the 95 % interval of scores, the median of times, and runs."""
    out: dict[str, Any] = {}
    for score in SCORES:
        mean, half = interval([one[score] for one in runs])
        out[score] = [round(mean, 2), None if half is None else round(half, 2)]
    out |= {name: round(median(one[name] for one in runs), 1) for name in TIMES}
    return out | {"seeds": [{k: round(v, 3) for k, v in one.items()} for one in runs]}


def markdown(found: dict[str, Any], data: str, order: str) -> str:
    """Return a table of the numbers of one stream, with the best value of each score in bold."""
    rows = {name: row for name, row in found[data][order].items() if name in CONTENDERS}
    best = {s: max(row[s][0] for row in rows.values()) for s in SCORES}
    lines = ["| | final | prequential | any-time | learn, µs | predict, µs |", "|---|" + "---|" * 5]
    for name in filter(rows.__contains__, CONTENDERS):
        cells = [_cell(*rows[name][s], best[s]) for s in SCORES]
        cells += [f"{rows[name][t]:,.0f}" for t in TIMES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(mean: float, half: float | None, best: float) -> str:
    value = f"{mean:.1f}" if f"{mean:.1f}" != f"{best:.1f}" else f"**{mean:.1f}**"
    return value if half is None else f"{value} ± {half:.1f}"


def add(path: Path, numbers: dict[str, Any], about: dict[str, Any]) -> None:
    """Add numbers by dataset, order and contender to a file."""
    found = json.loads(path.read_text()) if path.exists() else {}
    for data, orders in numbers.items():
        for order, rows in orders.items():
            found.setdefault("numbers", {}).setdefault(data, {}).setdefault(order, {}).update(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, about | {"numbers": found["numbers"]})


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alternatives")
    parser.add_argument("--data", default="", help="by default all")
    parser.add_argument("--orders", default="classes,shuffled")
    usual = [name for name in CONTENDERS if name != SEPARATE]
    parser.add_argument("--only", default=",".join(usual), help="contenders")
    parser.add_argument("--validation", action="store_true", help="on other training samples")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--conditions", default="", help="other load on the machine, for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    return parser


def chosen(asked: str, known: Sequence[str], what: str) -> list[str]:
    names = asked.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"error: {unknown(what, name, known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, and write the file."""
    args = options().parse_args(arguments)
    names = chosen(args.only, list(CONTENDERS), "contender")
    orders = chosen(args.orders, ORDERS, "order")
    torch.set_num_threads(1)
    if find_spec("river") is None:
        print("river is not installed and left out")
        names = [name for name in names if name not in RIVER]
    about = {
        "command": command("python -m benchmarks.alternatives"), "commit": args.commit,
        "machine": machine("cpu"), "conditions": args.conditions,
        "threads": torch.get_num_threads(),
        "versions": versions("dualcba", "torch", "numpy", "scikit-learn", "river"),
        "memory": MEMORY, "batch": BATCH, "test_samples": TEST,
    }  # fmt: skip
    readers = VALIDATION if args.validation else READERS
    for name in chosen(args.data or ",".join(readers), list(readers), "data"):
        try:
            data = readers[name](data_dir(args.data_dir))
        except OSError as error:
            print(f"{name} is left out: {error}")
            continue
        for order in orders:
            rows: dict[str, Any] = {}
            for who in (who for who in names if who not in data.without):
                rows[who] = summary([run(who, data, order, k) for k in range(args.seeds)])
                if args.json:
                    add(args.json, {name: {order: {who: rows[who]}}}, about)
            print(
                f"\n{name}, {order}\n\n{markdown({name: {order: rows}}, name, order)}", flush=True
            )


if __name__ == "__main__":
    main()
