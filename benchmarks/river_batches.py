"""Accuracy and latency of the river classifier by the number of samples per step.

    python -m benchmarks.river_batches

A prequential loop, `predict_one` then `learn_one`, over two datasets of river and over digits class
by class. Prints the accuracy over the whole stream as a mean over seeds, the median microseconds of
`predict_one`, and the mean microseconds of `learn_one`, most of whose calls only collect samples.
With `--held-out`, prints the accuracy on 30 % of the digits after learning the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from river import datasets
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dualcba.river import RiverClassifier

Stream = Iterator[tuple[dict[Any, float], Any]]


def digits() -> Stream:
    """Yield all zeros, then all ones, and so on."""
    X, y = load_digits(return_X_y=True)
    for row in np.argsort(y, kind="stable"):
        yield dict(enumerate(X[row].tolist())), int(y[row])


STREAMS = {
    "phishing": lambda: iter(datasets.Phishing()),
    "segments": lambda: iter(datasets.ImageSegments()),
    "digits by class": digits,
}


def prequential(stream: Stream, model: RiverClassifier, most: int | None) -> dict[str, float]:
    """Return the accuracy in percent, and the microseconds of the calls."""
    right, ask, learn = [], [], []
    for k, (x, y) in enumerate(stream):
        if k == most:
            break
        t0 = time.perf_counter()
        answer = model.predict_one(x)
        t1 = time.perf_counter()
        model.learn_one(x, y)
        learn.append(time.perf_counter() - t1)
        ask.append(t1 - t0)
        right.append(answer == y)
    return {
        "accuracy": 100 * float(np.mean(right)),
        "predict_us": 1e6 * float(np.median(ask)),
        "learn_us": 1e6 * float(np.mean(learn)),
    }


def measure(name: str, size: int, seeds: int, most: int | None = None) -> dict[str, Any]:
    """Return the means over seeds."""
    found = [
        prequential(STREAMS[name](), RiverClassifier(batch_size=size, seed=seed), most)
        for seed in range(seeds)
    ]
    means = {key: round(float(np.mean([one[key] for one in found])), 1) for key in found[0]}
    return {"stream": name, "batch_size": size, **means}


def held_out(size: int, seeds: int, test_size: float = 0.3) -> dict[str, Any]:
    """Return the accuracy in percent on held-out digits, after a stream class by class."""
    X, y = load_digits(return_X_y=True)
    found = []
    for seed in range(seeds):
        split = train_test_split(X, y, test_size=test_size, stratify=y, random_state=seed)
        train_x, test_x, train_y, test_y = split
        model = RiverClassifier(batch_size=size, seed=seed)
        for row in np.argsort(train_y, kind="stable"):
            model.learn_one(dict(enumerate(train_x[row].tolist())), int(train_y[row]))
        answers = [model.predict_one(dict(enumerate(x.tolist()))) for x in test_x]
        found.append(100 * float(np.mean(np.array(answers) == test_y)))
    return {"batch_size": size, "held_out": round(float(np.mean(found)), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 5, 10, 20])
    parser.add_argument("--most", type=int, help="samples of each stream, by default all")
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    for size in given.sizes if given.held_out else ():
        print(json.dumps(held_out(size, given.seeds)), flush=True)
    for name in () if given.held_out else STREAMS:
        for size in given.sizes:
            print(json.dumps(measure(name, size, given.seeds, given.most)), flush=True)


if __name__ == "__main__":
    main()
