"""Sliding and growing sets of classes: a task begins where a class arrives and the others stay."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dualcba import Dataset, Learner
from dualcba.tasks.detection import TaskDetector

Labels = NDArray[np.int64]
C = 12


def phases(lowest: Callable[[int], int], first: int, per: int, seed: int) -> Labels:
    """`per` labels with classes up to `first`, then `per` more for each class that arrives."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.integers(lowest(k), k + 1, per) for k in range(first, C)])


def sliding(width: int, per: int, seed: int) -> Labels:
    return phases(lambda k: k - width + 1, width - 1, per, seed)


def growing(per: int, seed: int) -> Labels:
    return phases(lambda k: 0, 1, per, seed)


@pytest.mark.parametrize("size", [4, 10, 32])
@pytest.mark.parametrize("width", [2, 4])
def test_each_class_of_a_sliding_window_begins_a_task(width: int, size: int) -> None:
    for seed in range(3):
        detector, y = TaskDetector(C), sliding(width, 200, seed)
        for k in range(0, len(y), size):
            detector.update(y[k : k + size])
        assert detector.number == C - width + 1
        assert detector.new == {C - 1}


@pytest.mark.parametrize("size", [4, 10, 32])
def test_each_class_of_a_growing_set_begins_a_task(size: int) -> None:
    for seed in range(3):
        detector, y = TaskDetector(C), growing(300, seed)
        for k in range(0, len(y), size):
            detector.update(y[k : k + size])
        assert detector.number >= C - 2  # of 11; with 16 · 12 labels the last ones are close
        assert C - 1 in detector.new
        assert len(detector.new) <= 2


def test_classes_that_arrive_together_begin_one_task() -> None:
    rng, detector = np.random.default_rng(0), TaskDetector(C)
    for classes in (4, 7, 10):
        for _ in range(60):
            detector.update(rng.integers(0, classes, 10))
    assert detector.number == 3
    assert detector.new == {7, 8, 9}


def test_a_class_that_stays_rare_does_not_begin_a_task() -> None:
    rng, detector = np.random.default_rng(0), TaskDetector(6)
    share = np.array([0.31, 0.31, 0.31, 0.07])
    for k in range(300):
        y = rng.choice(4, 10, p=share) if k > 20 else rng.integers(0, 3, 10)
        assert detector.update(y)[0] == (k == 0)


def test_state_round_trip_at_every_step() -> None:
    y, through, kept = growing(80, 0), TaskDetector(C), 0
    for k in range(0, len(y), 7):
        other = TaskDetector(C)
        state = json.loads(json.dumps(through.state_dict()))
        other.load_state_dict(state)
        kept += "arrivals" in state
        assert other.update(y[k : k + 7]) == through.update(y[k : k + 7])
        assert other.state_dict() == through.state_dict()
    assert kept > 50


def test_a_copy_is_not_changed() -> None:
    y, detector = growing(80, 0), TaskDetector(C)
    for k in range(0, len(y), 7):
        other, before = detector.copy(), detector.state_dict()
        detector.update(y[k : k + 7])
        assert other.state_dict() == before


def test_in_the_learner(make_learner: Callable[..., Learner], images: Dataset) -> None:
    learner, y = make_learner("er", boundaries="inferred"), images.train_y.numpy()
    rng = np.random.default_rng(0)
    for newest in (1, 2, 3):
        for _ in range(25):
            rows = rng.choice(np.flatnonzero(y <= newest), 8)
            learner.observe(images.train_x[rows], images.train_y[rows])
    assert learner.task == 2
    assert learner.class_sets.new.nonzero().flatten().tolist() == [3]
    assert learner.class_sets.old.nonzero().flatten().tolist() == [0, 1, 2]
    state = learner.state_dict()
    make_learner("er", boundaries="inferred").load_state_dict(state)
    state["meta"]["boundaries"]["arrivals"]["evidence"][0] = 7.0
    with pytest.raises(ValueError, match=r"arrivals.evidence' is .*, expected one number from 0"):
        make_learner("er", boundaries="inferred").load_state_dict(state)
