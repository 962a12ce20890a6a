"""Compute the numbers of a monitor from arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

CURVE = 40
"""Largest number of points of the accuracy curve in the window."""

BINS = 20
"""Bins of the histogram of ages."""


def window_numbers(labels: Ints, answers: Ints) -> dict[str, Any]:
    """Return the accuracy in a window in percent, and its curve as means of equal parts.

    >>> window_numbers(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]))
    {'samples': 4, 'accuracy': 75.0, 'curve': [100.0, 0.0, 100.0, 100.0]}
    """
    right = 100.0 * (labels == answers)
    parts = np.array_split(right, min(CURVE, len(right))) if len(right) else []
    return {
        "samples": len(right),
        "accuracy": float(right.mean()) if len(right) else None,
        "curve": [round(float(part.mean()), 1) for part in parts],
    }


def class_numbers(
    labels: Ints,
    answers: Ints,
    stored: Ints,
    new: NDArray[np.bool_],
    old: NDArray[np.bool_],
    names: Sequence[Any],
) -> tuple[list[dict[str, Any]], list[tuple[Any, Any, int]]]:
    """Return the numbers of each class so far, and the confusion as (class, answer, samples).

    `stored` are the labels in the memory, `new` and `old` are masks of the classes.
    """
    count, asked = len(names), max(1, len(answers))
    table = np.zeros((count, count), np.int64)
    known = (labels < count) & (answers >= 0) & (answers < count)
    np.add.at(table, (labels[known], answers[known]), 1)
    samples, given, kept = (
        np.bincount(values[values >= 0], minlength=count) for values in (labels, answers, stored)
    )
    classes = [
        {
            "class": names[k],
            "side": "new" if new[k] else "old",
            "samples": int(samples[k]),
            "accuracy": 100.0 * int(table[k, k]) / int(samples[k]) if samples[k] else None,
            "answers": 100.0 * int(given[k]) / asked,
            "memory": int(kept[k]),
        }
        for k in range(count)
        if new[k] or old[k] or samples[k]
    ]
    rows, columns = table.nonzero()
    pairs = zip(rows.tolist(), columns.tolist(), table[rows, columns].tolist(), strict=True)
    return classes, [(names[i], names[j], n) for i, j, n in pairs]


def loss_numbers(losses: NDArray[np.float32]) -> dict[str, float | None]:
    """Return the last finite loss, and the mean of recent finite losses."""
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return {"last": None, "mean": None}
    return {"last": float(finite[-1]), "mean": float(finite.astype(float).mean())}


def age_numbers(ages: Ints, step: int) -> dict[str, Any]:
    """Return statistics of the ages of memory samples: steps since they were stored, if known.

    >>> age_numbers(np.array([1, 1, 10]), 20)["histogram"][:3]
    [0, 2, 0]
    """
    if not len(ages):
        return {"known": 0, "mean": None, "median": None, "max": None, "histogram": []}
    counts, _ = np.histogram(ages, BINS, (0, max(step, 1)))
    return {
        "known": len(ages),
        "mean": float(ages.mean()),
        "median": float(np.median(ages)),
        "max": int(ages.max()),
        "histogram": counts.tolist(),
    }
