"""Scores against examples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dualcba.evaluation.scores import (
    accuracy_area,
    backward_transfer,
    final_accuracy,
    forgetting,
    forgetting_paper,
    forward_transfer,
    interval,
    last_task_area,
    min_accuracy,
    student_t,
    summarize,
    worst_case_accuracy,
)

nan = np.nan
# row = after task t, column = task i, percent
MATRIX = np.array(
    [
        [90.0, 10.0, 5.0],
        [95.0, 80.0, 20.0],
        [40.0, 60.0, 70.0],
    ]
)
UNTRAINED = np.array([12.0, 8.0, 6.0])
# two points per task; NaN where a task had not begun
CURVE = np.array(
    [
        [50.0, nan, nan],
        [92.0, nan, nan],
        [30.0, 40.0, nan],
        [70.0, 85.0, nan],
        [35.0, 20.0, 60.0],
        [45.0, 65.0, 75.0],
    ]
)
TASK = np.array([0, 0, 1, 1, 2, 2])


def test_acc() -> None:
    assert final_accuracy(MATRIX) == pytest.approx((40 + 60 + 70) / 3)


def test_fm_is_over_the_first_tasks_and_task_ends() -> None:
    # task 0: best task-end 95, final 40; task 1: best 80, final 60
    assert forgetting(MATRIX) == pytest.approx((55 + 20) / 2)


def test_fm_counts_no_accuracy_from_before_a_task_was_learnt() -> None:
    matrix = np.array([[50.0, 99.0], [50.0, 60.0]])
    assert forgetting(matrix) == 0
    matrix = np.array([[50.0, 0.0, 0.0], [50.0, 10.0, 99.0], [50.0, 10.0, 20.0]])
    assert forgetting(matrix) == 0


def test_fm_as_the_paper_writes_it() -> None:
    # best over the whole run: 95 (task end), 85 (any time), 75 (any time); mean over all three
    assert forgetting_paper(MATRIX, CURVE) == pytest.approx((55 + 25 + 5) / 3)


def test_neither_does_it_as_the_paper_writes_it() -> None:
    matrix = np.array([[50.0, 99.0], [50.0, 60.0]])
    assert forgetting_paper(matrix, np.array([[50.0, nan], [50.0, 60.0]])) == 0


def test_anytime_area() -> None:
    points = [50, 92, (30 + 40) / 2, (70 + 85) / 2, (35 + 20 + 60) / 3, (45 + 65 + 75) / 3]
    assert accuracy_area(CURVE) == pytest.approx(np.mean(points))
    assert last_task_area(CURVE, TASK, len(MATRIX)) == pytest.approx(np.mean(points[-2:]))


def test_min_acc_and_wc_acc() -> None:
    # task 0 since it was learnt: 90 | 30 70 95 | 35 45 40 → 30; task 1: 80 | 20 65 60 → 20
    assert min_accuracy(MATRIX, CURVE, TASK) == pytest.approx((30 + 20) / 2)
    assert worst_case_accuracy(MATRIX, CURVE, TASK) == pytest.approx(70 / 3 + 2 / 3 * 25)


def test_min_acc_does_not_count_while_a_task_is_being_learnt() -> None:
    curve = CURVE.copy()
    curve[0, 0] = curve[2, 1] = 1.0
    assert min_accuracy(MATRIX, curve, TASK) == min_accuracy(MATRIX, CURVE, TASK)


def test_min_acc_counts_from_after_the_end_of_a_task() -> None:
    matrix, curve = np.array([[10.0, 0.0], [50.0, 60.0]]), np.array([[10.0, nan], [40.0, 60.0]])
    assert min_accuracy(matrix, curve, np.array([0, 1])) == 40.0


def test_transfer() -> None:
    assert backward_transfer(MATRIX) == pytest.approx(((40 - 90) + (60 - 80)) / 2)
    # just before task 1 and task 2 were learnt, above the untrained network
    assert forward_transfer(MATRIX, UNTRAINED) == pytest.approx(((10 - 8) + (20 - 6)) / 2)


def test_the_newest_task_is_scored_at_its_own_end() -> None:
    scores = summarize(MATRIX, UNTRAINED, CURVE, TASK)
    assert scores["newest"] == pytest.approx((MATRIX[1, 1] + MATRIX[2, 2]) / 2)
    assert scores["newest_last"] == MATRIX[2, 2]


def test_summary_has_every_score_of_the_result() -> None:
    scores = summarize(MATRIX, UNTRAINED, CURVE, TASK)
    assert set(scores) >= {
        "acc", "fm", "fm_paper", "acc_auc", "acc_auc_last", "min_acc", "wc_acc", "bwt",
    }  # fmt: skip
    assert scores["fm"] == pytest.approx(37.5)
    assert scores["wc_acc"] == pytest.approx(40.0)
    assert all(type(v) is float for v in scores.values())


def test_what_was_not_measured_is_none() -> None:
    """Scores at task ends only: no any-time score, never 0."""
    scores = summarize(MATRIX, UNTRAINED, CURVE[:0], TASK[:0])
    missing = {k for k, v in scores.items() if v is None}
    assert missing == {"fm_paper", "acc_auc", "acc_auc_last", "min_acc", "wc_acc"}
    assert scores["acc"] == final_accuracy(MATRIX)


def test_a_single_task_has_nothing_to_forget() -> None:
    scores = summarize(np.array([[80.0]]), np.array([10.0]), np.array([[50.0]]), np.array([0]))
    assert scores["acc"] == 80
    assert {k for k, v in scores.items() if v is None} >= {
        "fm", "bwt", "fwt", "min_acc", "wc_acc", "newest",
    }  # fmt: skip


@pytest.mark.parametrize("points", [[0, 1, 2, 3], [0], [2, 3], [3], [1, 4]])
def test_no_score_is_nan_when_points_are_few(points: list[int]) -> None:
    """With few any-time points some tasks, the last one too, have none."""
    scores = summarize(MATRIX, UNTRAINED, CURVE[points], TASK[points])
    assert all(v is None or np.isfinite(v) for v in scores.values()), scores


@pytest.mark.parametrize("points", [[0, 1, 2, 3], [0], [3]])
def test_without_a_point_in_the_last_task_its_area_was_not_measured(points: list[int]) -> None:
    scores = summarize(MATRIX, UNTRAINED, CURVE[points], TASK[points])
    assert scores["acc_auc_last"] is None


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 30])
def test_student_t(degrees: int) -> None:
    assert student_t(degrees) == pytest.approx(float(stats.t.ppf(0.975, degrees)), rel=1e-6)
    assert student_t(degrees, 0.9) == pytest.approx(float(stats.t.ppf(0.95, degrees)), rel=1e-6)


def test_interval() -> None:
    values = [10.0, 12.0, 17.0, 11.0]
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert half is not None
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_a_single_value_has_no_interval() -> None:
    assert interval([3.0]) == (3.0, None)
    assert interval([3.0, 3.0]) == (3.0, 0.0)
