"""Scores of a continual run, from accuracies per task: pure functions of arrays, in percent.

`matrix[t, i]` is the accuracy on task i after task t; `curve[k, i]` the accuracy on task i at the
k-th any-time point, NaN where task i had not begun. A score that cannot be had is None.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scores = dict[str, float | None]


def acc(matrix: Floats) -> float:
    """Mean accuracy over all tasks at the end."""
    return float(matrix[-1].mean())


def forgetting(matrix: Floats) -> float | None:
    """Mean over all but the last task of best task-end accuracy minus final accuracy.

    >>> forgetting(np.array([[90.0, 0.0], [60.0, 80.0]]))
    30.0
    """
    if len(matrix) < 2:
        return None
    lower = np.where(np.tri(len(matrix), dtype=bool), matrix, -np.inf)
    return float((lower.max(0) - matrix[-1])[:-1].mean())


def forgetting_as_written(matrix: Floats, curve: Floats) -> float | None:
    """The paper's formula: mean over all tasks, best accuracy over the whole run."""
    if not len(curve):
        return None
    lower = np.where(np.tri(len(matrix), dtype=bool), matrix, -np.inf)
    best = np.nanmax(np.vstack([lower.max(0), curve]), axis=0)
    return float((best - matrix[-1]).mean())


def backward_transfer(matrix: Floats) -> float | None:
    """Mean change of a task's accuracy from when it was learnt to the end."""
    if len(matrix) < 2:
        return None
    return float((matrix[-1] - matrix.diagonal())[:-1].mean())


def forward_transfer(matrix: Floats, untrained: Floats) -> float | None:
    """Mean accuracy on a task just before it is learnt, above the untrained network's."""
    if len(matrix) < 2:
        return None
    before = matrix.diagonal(offset=1)
    return float((before - untrained[1:]).mean())


def area(curve: Floats) -> float | None:
    """Mean over points of the mean accuracy over the tasks seen so far."""
    return float(np.nanmean(curve, axis=1).mean()) if len(curve) else None


def area_of_last_task(curve: Floats, task: Ints, tasks: int) -> float | None:
    """The same over the points within the last of the tasks."""
    return area(curve[task == tasks - 1])


def minimum(matrix: Floats, curve: Floats, task: Ints) -> float | None:
    """Mean over old tasks of the lowest accuracy since the task was learnt (De Lange et al.)."""
    tasks = len(matrix)
    if not len(curve) or tasks < 2:
        return None
    lows = [
        min(np.min(curve[task > i, i], initial=np.inf), matrix[i + 1 :, i].min())
        for i in range(tasks - 1)
    ]
    return float(np.mean(lows))


def worst_case(matrix: Floats, curve: Floats, task: Ints) -> float | None:
    """1/T · accuracy of the last task + (1 − 1/T) · `minimum`."""
    low = minimum(matrix, curve, task)
    if low is None:
        return None
    share = 1 / len(matrix)
    return float(share * matrix[-1, -1] + (1 - share) * low)


def summarize(matrix: Floats, untrained: Floats, curve: Floats, task: Ints) -> Scores:
    """All scores of one run under one normalisation."""
    return {
        "acc": acc(matrix),
        "fm": forgetting(matrix),
        "fm_paper": forgetting_as_written(matrix, curve),
        "acc_auc": area(curve),
        "acc_auc_last": area_of_last_task(curve, task, len(matrix)),
        "min_acc": minimum(matrix, curve, task),
        "wc_acc": worst_case(matrix, curve, task),
        "bwt": backward_transfer(matrix),
        "fwt": forward_transfer(matrix, untrained),
    }


def interval(values: list[float], level: float = 0.95) -> tuple[float, float | None]:
    """Mean and half-width of Student's t interval; no width from a single value.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    n = len(values)
    if n < 2:
        return float(np.mean(values)), None
    spread = float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(np.mean(values)), student_t(n - 1, level) * spread


def student_t(degrees: int, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t.

    >>> round(student_t(4), 4)
    2.7764
    """
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, degrees))
