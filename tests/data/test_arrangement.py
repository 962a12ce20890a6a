"""i-Blurry, Gaussian-scheduled and long-tailed streams: counts of samples, exact or expected."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from dualcba.data import Task, batches, blurry, cycled, gaussian, i_blurry, long_tailed
from dualcba.data.arrangement import peaks

Ints = NDArray[np.int64]
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_stream(sizes: list[list[int]], seed: int = 0) -> tuple[list[Task], Ints]:
    """Tasks whose classes have these numbers of samples, in shuffled rows; and the labels."""
    flat = [n for task in sizes for n in task]
    labels = rng(seed).permutation(np.repeat(np.arange(len(flat)), flat))
    stream, start = [], 0
    for task in sizes:
        classes = tuple(range(start, start + len(task)))
        rows = np.flatnonzero(np.isin(labels, classes))
        stream.append(Task(classes, rows, np.array(classes)))
        start += len(task)
    return stream, labels


def table(stream: list[Task], labels: Ints) -> Ints:
    """Return the number of samples of each class (column) in each task (row)."""
    C = labels.max() + 1
    return np.array([np.bincount(labels[t.train], minlength=C) for t in stream])


def divisions() -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=2, max_size=5)


ARRANGEMENTS: list[Callable[[list[Task], Ints, np.random.Generator], list[Task]]] = [
    lambda s, y, r: i_blurry(s, y, 30, 20, r),
    lambda s, y, r: gaussian(s, y, 0.5, r),
    lambda s, y, r: long_tailed(s, y, 0.1, r),
]


@pytest.mark.parametrize("arrange", ARRANGEMENTS)
@given(sizes=divisions(), seed=seeds)
def test_classes_tests_and_the_given_stream_stay_and_the_seed_decides(
    arrange: Callable[..., list[Task]], sizes: list[list[int]], seed: int
) -> None:
    stream, labels = make_stream(sizes, seed)
    before = [task.train.copy() for task in stream]
    one, two = (arrange(stream, labels, rng(seed)) for _ in range(2))
    assert [t.classes for t in one] == [t.classes for t in stream]
    for a, b, task, kept in zip(one, two, stream, before, strict=True):
        assert np.array_equal(a.train, b.train)
        assert np.array_equal(a.test, task.test)
        assert np.array_equal(task.train, kept)
    rows = np.concatenate([t.train for t in one])
    assert len(set(rows.tolist())) == len(rows)
    assert set(rows.tolist()) <= set(range(len(labels)))


@pytest.mark.parametrize("arrange", ARRANGEMENTS)
def test_another_seed_gives_another_stream(arrange: Callable[..., list[Task]]) -> None:
    stream, labels = make_stream([[20, 20]] * 5)
    one, two = (arrange(stream, labels, rng(k)) for k in (0, 1))
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, two, strict=True))


# ---------------------------------------------------------------- i-Blurry


@given(sizes=divisions(), percent=st.floats(0, 99.9), blur=st.floats(0.5, 99.5), seed=seeds)
def test_i_blurry_moves_an_exact_share_of_the_blurry_classes_alone(
    sizes: list[list[int]], percent: float, blur: float, seed: int
) -> None:
    stream, labels = make_stream(sizes, seed)
    C = sum(map(len, sizes))
    fixed = round(C * percent / 100)
    if fixed == C:
        with pytest.raises(ValueError, match=f"at least one of {C} classes is blurry"):
            i_blurry(stream, labels, percent, blur, rng(seed))
        return
    before = table(stream, labels)
    after = table(i_blurry(stream, labels, percent, blur, rng(seed)), labels)
    assert np.array_equal(before.sum(0), after.sum(0))  # no sample is lost or repeated
    stays = (after == before).all(0)  # a blurry class may by chance stay as well
    assert stays.sum() >= fixed
    for t, task in enumerate(stream):
        own = list(task.classes)
        moved = (before - after)[t, own].sum()
        possible = [before[t, own][list(some)].sum() for some in subsets(len(own))]
        assert moved in {round(int(n) * blur / 100) for n in possible}


def subsets(n: int) -> list[tuple[int, ...]]:
    """All sets of blurry classes that a task of n classes may have."""
    return [tuple(i for i in range(n) if bits >> i & 1) for bits in range(2**n)]


@pytest.mark.parametrize(("percent", "each"), [(0, 0), (20, 2), (50, 5), (90, 9)])
def test_disjoint_classes_are_spread_evenly_over_the_tasks(percent: int, each: int) -> None:
    stream, labels = make_stream([[40] * 10] * 5)
    before = table(stream, labels)
    after = table(i_blurry(stream, labels, percent, 50, rng(3)), labels)
    stays = (after == before).all(0).reshape(5, 10)
    assert stays.sum(1).tolist() == [each] * 5


def test_i_blurry_of_the_literature() -> None:
    """CIFAR-100 in 5 tasks, N = 50 and M = 10: of 10 × 500 samples 500 move, 125 to each task."""
    stream, labels = make_stream([[500] * 20] * 5)
    mixed = i_blurry(stream, labels, 50, 10, rng(0))
    counts = table(mixed, labels).reshape(5, 5, 20)  # task, home, class
    for home in range(5):
        stays = counts[home, home] == 500
        assert stays.sum() == 10
        for task in range(5):
            came = counts[task, home]
            assert came[~stays].sum() == (4500 if task == home else 125)
            assert task == home or came[stays].sum() == 0


def test_i_blurry_without_disjoint_classes_is_blurry() -> None:
    stream, labels = make_stream([[13, 8], [21, 5], [9, 30]])
    ours = table(i_blurry(stream, labels, 0, 30, rng(0)), labels)
    usual = table(blurry(stream, 30, rng(1)), labels)
    tasks = ours.reshape(3, 3, 2).sum(2), usual.reshape(3, 3, 2).sum(2)
    assert np.array_equal(*tasks)


@pytest.mark.parametrize(("sizes", "number"), [([[40] * 4, [40] * 2], 3), ([[40] * 2] * 3, 1)])
def test_every_class_is_as_likely_to_be_disjoint(sizes: list[list[int]], number: int) -> None:
    """Also if there are fewer disjoint classes than tasks."""
    stream, labels = make_stream(sizes)
    before = table(stream, labels)
    found = [
        (table(i_blurry(stream, labels, 100 * number / 6, 50, rng(k)), labels) == before).all(0)
        for k in range(400)
    ]
    assert abs(np.mean(found, 0) - number / 6).max() < 0.125  # five standard deviations


@pytest.mark.parametrize(
    ("disjoint", "blur", "message"),
    [
        (100, 10, "percent of disjoint classes is 100, expected from 0 to below 100"),
        (-1, 10, "percent of disjoint classes is -1, expected from 0 to below 100"),
        (50, 0, "percent of a blurry stream is 0, expected between 0 and 100"),
    ],
)
def test_bad_percentages_of_i_blurry(disjoint: float, blur: float, message: str) -> None:
    stream, labels = make_stream([[4, 4], [4, 4]])
    with pytest.raises(ValueError, match=re.escape(message)):
        i_blurry(stream, labels, disjoint, blur, rng(0))


# ---------------------------------------------------------------- Gaussian


@given(sizes=divisions(), width=st.floats(0.01, 10), seed=seeds)
def test_a_gaussian_stream_has_every_sample_once_in_parts_of_the_same_length(
    sizes: list[list[int]], width: float, seed: int
) -> None:
    stream, labels = make_stream(sizes, seed)
    found = gaussian(stream, labels, width, rng(seed))
    assert [len(t.train) for t in found] == [len(t.train) for t in stream]
    rows = np.concatenate([t.train for t in found])
    assert sorted(rows.tolist()) == list(range(len(labels)))
    assert all(t.ordered for t in found)


def test_peaks_are_the_middles_of_the_classes_places() -> None:
    stream, labels = make_stream([[10, 30], [40], [20]])
    assert peaks(stream, labels).tolist() == [0.05, 0.25, 0.6, 0.9]


@pytest.mark.parametrize("width", [0.25, 0.5, 2.0])
@pytest.mark.parametrize("sizes", [[[600, 600]] * 4, [[900, 300], [100, 700], [1200]]])
def test_classes_arrive_around_their_peaks(width: float, sizes: list[list[int]]) -> None:
    """Counts per task against the mixture of normal distributions, cut where the tasks end."""
    stream, labels = make_stream(sizes)
    found = table(gaussian(stream, labels, width, rng(0)), labels)
    flat = np.array([n for task in sizes for n in task])
    total, sigma = flat.sum(), width / len(sizes)
    mean = (np.cumsum(flat) - flat / 2) / total
    lengths = np.cumsum([sum(task) for task in sizes])[:-1] / total

    def arrived(t: float) -> float:
        return float((flat / total * norm.cdf(t, mean, sigma)).sum())

    cuts = [brentq(lambda t, q=q: arrived(t) - q, -50, 50) for q in lengths]
    edges = np.array([-np.inf, *cuts, np.inf])
    share = np.diff(norm.cdf(edges[:, None], mean, sigma), axis=0)  # task, class
    error = np.abs(found - flat * share) / np.sqrt(flat * share * (1 - share) + 1)
    assert error.max() < 5  # the cuts themselves vary by less


def test_a_narrow_peak_is_one_class_after_another_and_a_wide_one_has_no_order() -> None:
    stream, labels = make_stream([[50, 30], [40, 60]])
    narrow = np.concatenate([t.train for t in gaussian(stream, labels, 1e-6, rng(0))])
    assert labels[narrow].tolist() == sorted(labels.tolist())
    stream, labels = make_stream([[1000, 1000], [1000, 1000]])
    wide = table(gaussian(stream, labels, 1e6, rng(0)), labels)
    assert abs(wide - 500).max() < 5 * np.sqrt(250)


def test_an_ordered_task_keeps_its_order_in_batches() -> None:
    task = Task((0,), rng(0).permutation(25), np.arange(1), ordered=True)
    assert np.array_equal(batches(task, 4, rng(1)).ravel(), task.train[:24])
    mask = np.arange(25) % 5 == 0
    rows, _ = cycled(task, mask, 4, rng(1))
    want = [r for r in task.train if not mask[r]][:20]
    assert rows[:, 4:].ravel().tolist() == want
    assert rows[0, :4].tolist() == [r for r in task.train if mask[r]][:4]


@pytest.mark.parametrize("width", [0, -1, float("inf"), float("nan")])
def test_bad_widths(width: float) -> None:
    stream, labels = make_stream([[4], [4]])
    with pytest.raises(ValueError, match=r"width of a Gaussian stream is .*, expected a number"):
        gaussian(stream, labels, width, rng(0))


# ---------------------------------------------------------------- long tails


@given(sizes=divisions(), ratio=st.floats(0.001, 1), seed=seeds)
def test_class_sizes_follow_the_profile_exactly(
    sizes: list[list[int]], ratio: float, seed: int
) -> None:
    stream, labels = make_stream(sizes, seed)
    found = table(long_tailed(stream, labels, ratio, rng(seed)), labels)
    flat = [n for task in sizes for n in task]
    C, n = len(flat), min(flat)
    want = [max(1, round(n * ratio ** (k / max(C - 1, 1)))) for k in range(C)]
    assert sorted(found.sum(0).tolist(), reverse=True) == want
    for t, task in enumerate(stream):
        assert np.delete(found[t], task.classes).sum() == 0  # classes stay in their tasks


def test_the_long_tail_of_the_literature() -> None:
    """CIFAR-100-LT with an imbalance of 100: from 500 samples to 5."""
    stream, labels = make_stream([[500] * 10] * 10)
    sizes = table(long_tailed(stream, labels, 0.01, rng(0)), labels).sum(0)
    assert (sizes.max(), sizes.min()) == (500, 5)
    exact = 500 * 0.01 ** (np.arange(100) / 99)
    assert np.sort(sizes)[::-1].tolist() == np.round(exact).astype(int).tolist()


def test_any_class_may_be_rare_and_any_sample_may_be_kept() -> None:
    stream, labels = make_stream([[20, 20], [20, 20]])
    kept = np.zeros(len(labels))
    rarest = np.zeros(4)
    for k in range(400):
        found = long_tailed(stream, labels, 0.1, rng(k))
        kept[np.concatenate([t.train for t in found])] += 1
        rarest[table(found, labels).sum(0).argmin()] += 1
    assert abs(rarest - 100).max() < 5 * np.sqrt(75)
    share = np.mean([20, 9, 4, 2]) / 20
    assert abs(kept / 400 - share).max() < 5 * np.sqrt(0.25 / 400)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, float("nan")])
def test_bad_ratios_of_a_long_tail(ratio: float) -> None:
    stream, labels = make_stream([[4], [4]])
    with pytest.raises(ValueError, match=f"ratio of a long tail is {ratio}, expected above 0"):
        long_tailed(stream, labels, ratio, rng(0))


def test_a_long_tail_composes_with_other_arrangements() -> None:
    stream, labels = make_stream([[200, 200]] * 5)
    tail = long_tailed(stream, labels, 0.1, rng(0))
    sizes = table(tail, labels).sum(0)
    for arrange in (
        lambda s: gaussian(s, labels, 0.5, rng(1)),
        lambda s: blurry(s, 20, rng(1)),
        lambda s: i_blurry(s, labels, 50, 20, rng(1)),
    ):
        mixed = table(arrange(tail), labels)
        assert np.array_equal(mixed.sum(0), sizes)
        assert (np.delete(mixed[0], [0, 1]) > 0).any()
