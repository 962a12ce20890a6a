"""Scores against examples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from sklearn import metrics

from dualcba.evaluation.scores import (
    accuracy_area,
    backward_transfer,
    balanced_accuracy,
    final_accuracy,
    forgetting,
    forgetting_paper,
    forward_transfer,
    interval,
    last_task_area,
    learning_accuracy,
    min_accuracy,
    relative_forgetting,
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
    matrix = np.array([[50.0, 99.0, 0.0], [50.0, 10.0, 99.0], [50.0, 10.0, 20.0]])
    assert forgetting(matrix) == relative_forgetting(matrix) == 0


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


def test_relative_forgetting_divides_by_the_best_of_each_task() -> None:
    # task 0: best 95, final 40; task 1: best 80, final 60; the last task does not count
    want = 100 * (55 / 95 + 20 / 80) / 2
    assert relative_forgetting(MATRIX) == pytest.approx(want)
    assert summarize(MATRIX, UNTRAINED, CURVE, TASK)["relative_fm"] == pytest.approx(want)


def test_a_task_that_was_never_learnt_has_nothing_to_forget() -> None:
    matrix = np.array([[0.0, 50.0, 0.0], [0.0, 40.0, 0.0], [0.0, 10.0, 90.0]])
    assert relative_forgetting(matrix) == pytest.approx(75.0)
    assert relative_forgetting(np.zeros((3, 3))) is None
    assert relative_forgetting(np.array([[50.0]])) is None


def test_accuracy_right_after_learning_is_the_diagonal() -> None:
    assert learning_accuracy(MATRIX) == pytest.approx((90 + 80 + 70) / 3)
    assert summarize(MATRIX, UNTRAINED, CURVE, TASK)["learning_acc"] == pytest.approx(80.0)
    assert learning_accuracy(np.array([[50.0]])) == 50.0


matrices = hnp.arrays(
    float, st.integers(1, 6).map(lambda t: (t, t)), elements=st.floats(0, 100, width=16)
)


@given(matrix=matrices)
def test_forgetting_of_any_matrix_against_loops(matrix: np.ndarray) -> None:
    T, shares = len(matrix), []
    for i in range(T - 1):
        best = max(matrix[t][i] for t in range(i, T))
        shares += [100 * (best - matrix[T - 1][i]) / best] if best > 0 else []
    found = relative_forgetting(matrix)
    assert found is None if not shares else found == pytest.approx(np.mean(shares))
    assert found is None or 0 <= found <= 100
    assert learning_accuracy(matrix) == pytest.approx(sum(matrix[t][t] for t in range(T)) / T)


def test_balanced_accuracy_by_hand() -> None:
    """Classes of 100, 10 and 1 test samples, of which 50, 10 and 0 are recognised."""
    right, sizes = np.array([50, 10, 0]), np.array([100, 10, 1])
    assert balanced_accuracy(right, sizes, np.array([0, 1, 2])) == pytest.approx(150 / 3)
    # the same class in two groups: 60 of 110
    assert balanced_accuracy(right, sizes, np.array([4, 4, 2])) == pytest.approx(100 * 60 / 110 / 2)


@given(
    y=hnp.arrays(np.int64, 40, elements=st.integers(0, 5)),
    guess=hnp.arrays(np.int64, 40, elements=st.integers(0, 5)),
)
def test_balanced_accuracy_is_that_of_scikit_learn(y: np.ndarray, guess: np.ndarray) -> None:
    want = metrics.recall_score(y, guess, labels=np.unique(y), average="macro", zero_division=0)
    classes, sizes = np.unique(y, return_counts=True)
    right = np.array([((y == c) & (guess == c)).sum() for c in classes])
    assert balanced_accuracy(right, sizes, classes) == pytest.approx(100 * want)


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


def test_interval() -> None:
    values = [10.0, 12.0, 17.0, 11.0]
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert half is not None
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_a_single_value_has_no_interval() -> None:
    assert interval([3.0]) == (3.0, None)
    assert interval([3.0, 3.0]) == (3.0, 0.0)
