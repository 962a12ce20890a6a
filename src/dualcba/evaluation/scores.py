"""Scores of a continual run: functions of the accuracies per task, all in percent.

`matrix[t, i]` is the accuracy on task i after task t. `curve[k, i]` is the accuracy on task i at
any-time evaluation k, NaN if task i had not begun; `curve_task[k]` is the current task at that
evaluation. A score that cannot be computed is None.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scores = dict[str, float | None]


def final_accuracy(matrix: Floats) -> float:
    """Mean accuracy over all tasks after the last task."""
    return float(matrix[-1].mean())


def forgetting(matrix: Floats) -> float | None:
    """Mean over all but the last task of its best accuracy at any task's end minus its final one.

    >>> forgetting(np.array([[90.0, 0.0], [60.0, 80.0]]))
    30.0
    """
    if len(matrix) < 2:
        return None
    return float((_best_after_learning(matrix) - matrix[-1])[:-1].mean())


def forgetting_paper(matrix: Floats, curve: Floats) -> float | None:
    """Mean over all tasks of the best accuracy at any time minus the final one.

    This is the formula written in the paper; `forgetting` is the usual definition.
    """
    if not len(curve):
        return None
    best = np.nanmax(np.vstack([_best_after_learning(matrix), curve]), axis=0)
    return float((best - matrix[-1]).mean())


def _best_after_learning(matrix: Floats) -> Floats:
    """Best accuracy on each task at its own end or a later task's end."""
    learnt = np.tri(len(matrix), dtype=bool)
    best: Floats = np.where(learnt, matrix, -np.inf).max(0)
    return best


def backward_transfer(matrix: Floats) -> float | None:
    """Mean change of the accuracy on a task from the end of the task to the end of the run."""
    if len(matrix) < 2:
        return None
    return float((matrix[-1] - matrix.diagonal())[:-1].mean())


def forward_transfer(matrix: Floats, untrained: Floats) -> float | None:
    """Mean accuracy on a task before it is learnt, minus that of the untrained network."""
    if len(matrix) < 2:
        return None
    before = matrix.diagonal(offset=1)
    return float((before - untrained[1:]).mean())


def relative_forgetting(matrix: Floats) -> float | None:
    """Mean over all but the last task of its forgetting, in percent of its best accuracy.

    Forgetting and best accuracy are as in `forgetting`. Tasks with a best accuracy of 0 are left
    out; None if no task is left.


    >>> relative_forgetting(np.array([[90.0, 0.0], [60.0, 80.0]]))
    33.33...
    """
    best, final = _best_after_learning(matrix)[:-1], matrix[-1, :-1]
    learnt = best > 0
    if not learnt.any():
        return None
    return float((100 * (best - final)[learnt] / best[learnt]).mean())


def learning_accuracy(matrix: Floats) -> float:
    """Mean over all tasks of the accuracy on a task right after it was learnt.

    >>> learning_accuracy(np.array([[90.0, 0.0], [60.0, 80.0]]))
    85.0
    """
    return float(matrix.diagonal().mean())


def balanced_accuracy(right: Ints, sizes: Ints, classes: Ints) -> float:
    """Mean recall over classes, in percent.

    Parameters
    ----------
    right, sizes
        Correct predictions and test samples of groups, each with samples of one class.
    classes
        The class of each group; a class may have several groups.

    >>> balanced_accuracy(np.array([9, 1]), np.array([10, 2]), np.array([0, 1]))
    70.0
    """
    member = np.unique(classes)[:, None] == classes
    return float((100 * (member @ right) / (member @ sizes)).mean())


def newest_accuracy(matrix: Floats) -> float | None:
    """Mean over all but the first task of the accuracy on a task at its own end.

    >>> newest_accuracy(np.array([[90.0, 0.0], [60.0, 80.0]]))
    80.0
    """
    return float(matrix.diagonal()[1:].mean()) if len(matrix) > 1 else None


def accuracy_area(curve: Floats) -> float | None:
    """Mean over the any-time evaluations of the mean accuracy over the tasks seen so far."""
    return float(np.nanmean(curve, axis=1).mean()) if len(curve) else None


def last_task_area(curve: Floats, curve_task: Ints, tasks: int) -> float | None:
    """`accuracy_area` of the evaluations during the last task."""
    return accuracy_area(curve[curve_task == tasks - 1])


def min_accuracy(matrix: Floats, curve: Floats, curve_task: Ints) -> float | None:
    """Mean over old tasks of the lowest accuracy after the task was learnt (De Lange et al.)."""
    tasks = len(matrix)
    if not len(curve) or tasks < 2:
        return None
    lowest = [
        min(np.min(curve[curve_task > i, i], initial=np.inf), matrix[i + 1 :, i].min())
        for i in range(tasks - 1)
    ]
    return float(np.mean(lowest))


def worst_case_accuracy(matrix: Floats, curve: Floats, curve_task: Ints) -> float | None:
    """1/T · accuracy of the last task + (1 − 1/T) · `min_accuracy`, with T tasks."""
    lowest = min_accuracy(matrix, curve, curve_task)
    if lowest is None:
        return None
    weight = 1 / len(matrix)
    return float(weight * matrix[-1, -1] + (1 - weight) * lowest)


def summarize(matrix: Floats, untrained: Floats, curve: Floats, curve_task: Ints) -> Scores:
    """Return all scores of a run by name.

    Parameters
    ----------
    matrix
        Accuracy on each task after each task.
    untrained
        Accuracy of the untrained network on each task.
    curve
        Accuracy on each task at each any-time evaluation.
    curve_task
        The current task at each any-time evaluation.
    """
    return {
        "acc": final_accuracy(matrix),
        "fm": forgetting(matrix),
        "fm_paper": forgetting_paper(matrix, curve),
        "acc_auc": accuracy_area(curve),
        "acc_auc_last": last_task_area(curve, curve_task, len(matrix)),
        "min_acc": min_accuracy(matrix, curve, curve_task),
        "wc_acc": worst_case_accuracy(matrix, curve, curve_task),
        "bwt": backward_transfer(matrix),
        "fwt": forward_transfer(matrix, untrained),
        "relative_fm": relative_forgetting(matrix),
        "learning_acc": learning_accuracy(matrix),
        "newest": newest_accuracy(matrix),
        "newest_last": float(matrix[-1, -1]),
    }


def interval(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and the half-width of its 95 % interval, by Student's t distribution.

    The half-width of a single value is None.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    n = len(values)
    if n < 2:
        return float(np.mean(values)), None
    standard_error = float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(np.mean(values)), student_t(n - 1) * standard_error


@cache
def student_t(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution.

    >>> round(student_t(4), 4)
    2.7764
    """
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))
