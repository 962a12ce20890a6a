"""The effect of online standardisation on vectors of mixed scales.

    python -m benchmarks.standardise

Datasets of scikit-learn arrive in one pass, either class by class or in random order; 30 % of the
samples are test data. Each seed has its own split, order and initial weights. Prints the final
accuracies without and with standardisation, and their mean difference over seeds with a 95 %
interval.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from scipy import stats
from sklearn import datasets
from sklearn.model_selection import train_test_split

from dualcba.estimator import DualCBAClassifier

TABLES = {
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
    "iris": datasets.load_iris,
    "digits": datasets.load_digits,
}
CALL = 10  # samples per call


def accuracy(table: str, by_class: bool, seed: int, standardise: bool, method: str) -> float:
    """Return the final test accuracy in percent of one pass over a table."""
    X, y = TABLES[table](return_X_y=True)
    X, test_X, y, test_y = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)
    order = np.random.default_rng(seed).permutation(len(y))
    if by_class:
        order = order[np.argsort(y[order], kind="stable")]
    options = {"standardise": standardise}
    classifier = DualCBAClassifier(method=method, learner_options=options, random_state=seed)
    for k in range(0, len(order), CALL):
        rows = order[k : k + CALL]
        classifier.partial_fit(X[rows], y[rows])
    return 100 * classifier.score(test_X, test_y)


def measure(table: str, by_class: bool, seeds: int, method: str) -> dict[str, Any]:
    """Return the mean accuracies of all seeds, and the interval of their difference."""
    runs = [
        [accuracy(table, by_class, s, on, method) for on in (False, True)] for s in range(seeds)
    ]
    without, with_ = np.array(runs).T
    gain = with_ - without
    half = stats.t.ppf(0.975, seeds - 1) * gain.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else None
    return {
        "table": table,
        "order": "by class" if by_class else "random",
        "without": round(without.mean(), 1),
        "with": round(with_.mean(), 1),
        "gain": round(gain.mean(), 1),
        "half_width": None if half is None else round(half, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--method", default="er-balanced-cba")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    given = parser.parse_args()
    for table in given.tables:
        for by_class in (True, False):
            print(json.dumps(measure(table, by_class, given.seeds, given.method)), flush=True)


if __name__ == "__main__":
    main()
