"""Sliding and growing sets of classes: a task begins where a class arrives and the others stay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dualcba import Dataset, Learner
from dualcba.tasks.arrivals import Arrivals
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


class ByHand:
    """The rule in the description of the module, with sets and numbers of labels."""

    def __init__(self) -> None:
        self.strays: set[int] = set()
        self.begin(set(), set())

    def begin(self, appeared: set[int], own: set[int]) -> None:
        self.strays = (self.strays | appeared) - own
        self.waiting, self.settled = set(self.strays), False
        self.evidence: dict[int, float] = {}
        self.since: Counter[int] = Counter()

    def update(
        self, y: list[int], counts: Counter[int], before: set[int], own: set[int]
    ) -> set[int]:
        if not self.settled and counts.total() >= 16 * (len(counts) + 1):
            self.settled = True
            self.waiting = {c for c in self.waiting if counts[c] < 2}
        if self.settled:
            self.waiting |= set(y) - set(counts) - before
        if not self.settled or not self.waiting:
            return set()
        lost = len(y) / (2 * (len(own - self.waiting) + 1))
        known = self.evidence
        self.evidence = {c: max(0.0, known.get(c, 0) + y.count(c) - lost) for c in self.waiting}
        self.since = self.since + Counter(y) if any(self.evidence.values()) else Counter()
        most = max(self.evidence.values())
        return {c for c, e in self.evidence.items() if e > 0} if most >= 6 else set()


def test_the_rule_by_hand_on_streams_with_strays_and_classes_that_stay() -> None:
    found: list[int] = []  # the number of classes of each arrival
    for seed in range(14):
        rng, rule, arrivals = np.random.default_rng(seed), ByHand(), Arrivals(8)
        counts, before, own = Counter[int](), set[int](), {0, 1, 2}
        share = np.array([5, 5, 5, 0.05, 0.1, 0.2, 0.5, 0])
        for k in range(200):
            if k in (70, 140):
                share[3 + rng.choice(5, 2, replace=False)] = 5
            if k % 30 == 29:  # a class that waits may be an own one by its frequency
                own = own | set(rng.choice(8, 1).tolist())
            y = rng.choice(8, rng.integers(1, 12), p=share / share.sum())
            arrays = [np.bincount(list(part), minlength=8) for part in (y, counts.elements())]
            masks = [np.isin(np.arange(8), list(part)) for part in (before, own)]
            got = arrivals.update(arrays[0], arrays[1], masks[0], masks[1])
            want = rule.update(y.tolist(), counts, before, own)
            assert set(np.flatnonzero(got)) == want
            assert arrivals.evidence.tolist() == [rule.evidence.get(c, 0.0) for c in range(8)]
            assert arrivals.since.tolist() == [rule.since[c] for c in range(8)]
            counts.update(y.tolist())
            known = np.bincount(list(counts.elements()), minlength=8)
            if arrivals.is_plain(known):  # so that a state need not have it
                other = Arrivals(8)
                other.start(known)
                assert other.state_dict() == arrivals.state_dict()
            if want or rng.random() < 0.02:
                found += [len(want)] * bool(want)
                appeared, own = set(counts) - before, own | want
                masks = [np.isin(np.arange(8), list(part)) for part in (appeared, own)]
                arrivals.begin(masks[0], masks[1])
                rule.begin(appeared, own)
                before = (before | appeared) - want
                counts = Counter()
    assert len(found) > 7
    assert max(found) > 1


def test_a_class_that_was_a_tasks_own_is_no_stray_when_it_comes_back() -> None:
    detector = TaskDetector(8)
    for classes in ([0, 1] * 16, [2, 3] * 16, [2, 0, 3, 2], [4, 5] * 40, *[[0, 4, 5]] * 40):
        detector.update(np.array(classes))
    assert detector.number == 3


def test_in_a_task_after_an_arrival_a_class_may_be_new_again() -> None:
    detector, found = TaskDetector(8), []
    for classes in ([0, 1] * 30, *[[0, 1, 2]] * 20, [3, 4, 5] * 4, [3, 4, 5, 0] * 20):
        detector.update(np.array(classes))
        found.append((detector.number, set(detector.new)))
    assert found[20:] == [(2, {2}), (3, {3, 4, 5}), (3, {0, 3, 4, 5})]


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


@pytest.mark.parametrize(
    "y", [growing(80, 0), np.arange(C).repeat(20)], ids=["growing", "disjoint"]
)
def test_a_copy_is_not_changed(y: Labels) -> None:
    detector = TaskDetector(C)
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
