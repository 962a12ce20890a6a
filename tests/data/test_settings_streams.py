"""Properties of the streams of all settings: no sample is lost or repeated, shares are exact."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualcba import Dataset, from_arrays
from dualcba.data import Task, batches, blurry, cycled, disjoint, labelled
from dualcba.data.stream import split_classes

seeds = st.integers(0, 2**32 - 1)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_data(sizes: list[int], seed: int = 0) -> Dataset:
    """Class c has `sizes[c]` training samples, shuffled, and two test samples."""
    y = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.arange(len(y), dtype=np.float32)[:, None].repeat(2, 1)
    ty = np.arange(len(sizes)).repeat(2)
    return from_arrays(x, y, np.zeros((len(ty), 2)), ty, num_classes=len(sizes))


def task_of(n: int) -> Task:
    rows = np.arange(100, 100 + n)
    return Task((0, 1), rows, rows[:1])


# ---------------------------------------------------------------- batches


@given(n=st.integers(1, 200), size=st.integers(1, 64), seed=seeds)
def test_every_sample_once_per_epoch_but_for_the_incomplete_batch(
    n: int, size: int, seed: int
) -> None:
    task = task_of(n)
    if size > n:
        with pytest.raises(ValueError, match=f"batch_size is {size}, expected at most the {n}"):
            batches(task, size, rng(seed))
        return
    rows = batches(task, size, rng(seed))
    assert rows.shape == (n // size, size)
    flat = rows.ravel().tolist()
    assert len(set(flat)) == len(flat) == n - n % size
    assert set(flat) <= set(task.train.tolist())
    if n % size == 0:
        assert sorted(flat) == task.train.tolist()


@given(n=st.integers(20, 100), seed=seeds)
def test_each_epoch_has_an_order_of_its_own(n: int, seed: int) -> None:
    generator = rng(seed)
    first, second = (batches(task_of(n), 4, generator) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, batches(task_of(n), 4, rng(seed)))


def test_any_sample_may_be_left_out_and_come_at_any_place() -> None:
    """Of ten samples in batches of four, two are left out: in every epoch other ones."""
    epochs = np.array([batches(task_of(10), 4, rng(k)).ravel() - 100 for k in range(400)])
    came = np.array([np.bincount(place, minlength=10) for place in epochs.T]) / 400
    assert abs(came - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 400)  # of each place and sample


def test_labelled_samples_of_cycled_batches_come_in_any_order() -> None:
    mask = np.arange(120) % 2 == 0  # five labelled samples of task_of(10)
    first = [cycled(task_of(10), mask, 2, rng(k))[0][0, 0] for k in range(400)]
    share = np.bincount(first, minlength=110)[100::2] / 400
    assert abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 400)


# ---------------------------------------------------------------- classes of the tasks


@st.composite
def class_orders(draw: st.DrawFn) -> tuple[int, list[int] | None]:
    C = draw(st.integers(1, 12))
    return C, draw(st.none() | st.permutations(list(range(C))))


@given(order=class_orders(), data=st.data())
def test_a_number_of_tasks(order: tuple[int, list[int] | None], data: st.DataObject) -> None:
    C, given_order = order
    tasks = data.draw(st.sampled_from([t for t in range(1, C + 1) if C % t == 0]))
    groups = split_classes(C, tasks, given_order)
    assert [len(g) for g in groups] == [C // tasks] * tasks
    assert [c for g in groups for c in g] == (given_order or list(range(C)))


@given(order=class_orders(), data=st.data())
def test_sizes_of_tasks(order: tuple[int, list[int] | None], data: st.DataObject) -> None:
    C, given_order = order
    sizes: list[int] = []
    while sum(sizes) < C and len(sizes) < data.draw(st.integers(1, 5)):
        sizes.append(data.draw(st.integers(1, C - sum(sizes))))
    groups = split_classes(C, sizes, given_order)
    assert [len(g) for g in groups] == sizes
    assert [c for g in groups for c in g] == (given_order or list(range(C)))[: sum(sizes)]


@given(order=class_orders(), data=st.data())
def test_lists_of_classes_are_kept(
    order: tuple[int, list[int] | None], data: st.DataObject
) -> None:
    C, given_order = order
    flat = data.draw(st.permutations(list(range(C))))[: data.draw(st.integers(1, C))]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(flat) - 1)))) if len(flat) > 1 else []
    lists = [list(part) for part in np.split(np.array(flat), cuts)]
    assert split_classes(C, lists, given_order) == lists


@pytest.mark.parametrize(
    ("tasks", "order", "message"),
    [
        (0, None, "tasks is 0, expected a divisor of the 6 classes"),
        (-2, None, "tasks is -2, expected a divisor of the 6 classes"),
        (4, None, "tasks is 4, expected a divisor of the 6 classes"),
        ([], None, "tasks is [], expected sizes of at least 1 that sum to at most 6"),
        ([3, 0], None, "tasks is [3, 0], expected sizes of at least 1"),
        ([4, -1], None, "tasks is [4, -1], expected sizes of at least 1"),
        ([3, 4], None, "tasks is [3, 4], expected sizes of at least 1 that sum to at most 6"),
        ([[0, 1], [1]], None, "expected lists of distinct classes from 0 to 5"),
        ([[0], []], None, "expected lists of distinct classes from 0 to 5"),
        ([[0], [6]], None, "tasks is [[0], [6]], expected lists of distinct classes from 0 to 5"),
        ([[-1]], None, "expected lists of distinct classes from 0 to 5"),
        (2, [0, 1, 2], "class order is [0, 1, 2], expected each of 0 to 5 once"),
        (2, [0, 1, 2, 3, 4, 4], "expected each of 0 to 5 once"),
        (2, [1, 2, 3, 4, 5, 6], "expected each of 0 to 5 once"),
    ],
)
def test_bad_tasks_and_orders_are_named(tasks: Any, order: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        split_classes(6, tasks, order)


def test_rows_follow_the_classes() -> None:
    data = make_data([5, 3, 8, 2])
    stream = disjoint(data, [[3, 0], [2]])
    for task, classes in zip(stream, ((3, 0), (2,)), strict=True):
        assert task.classes == classes
        for rows, y in ((task.train, data.train_y), (task.test, data.test_y)):
            assert sorted(rows.tolist()) == [i for i, c in enumerate(y.tolist()) if c in classes]


# ---------------------------------------------------------------- blurry


@st.composite
def streams(draw: st.DrawFn) -> list[Task]:
    """Two to six tasks of 1 to 80 samples; rows are distinct and shuffled."""
    sizes = draw(st.lists(st.integers(1, 80), min_size=2, max_size=6))
    rows = rng(draw(seeds)).permutation(sum(sizes))
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    return [Task((k,), part, np.array([k, 7 * k])) for k, part in enumerate(parts)]


@given(stream=streams(), percent=st.floats(0.5, 99.5), seed=seeds)
def test_blurry_moves_an_exact_share_in_equal_disjoint_parts(
    stream: list[Task], percent: float, seed: int
) -> None:
    mixed = blurry(stream, percent, rng(seed))
    home = {int(row): t for t, task in enumerate(stream) for row in task.train}
    came = np.zeros((len(stream), len(stream)), dtype=int)  # from, to
    for to, task in enumerate(mixed):
        for row in task.train:
            came[home[int(row)], to] += 1
    for t, task in enumerate(stream):
        moved = np.delete(came[t], t)
        assert moved.sum() == round(len(task.train) * percent / 100)
        assert moved.max() - moved.min() <= 1
    rows = np.concatenate([task.train for task in mixed])
    assert sorted(rows.tolist()) == sorted(home)  # no sample is lost or repeated


@given(stream=streams(), seed=seeds)
def test_blurry_leaves_classes_test_tasks_and_the_given_stream_alone(
    stream: list[Task], seed: int
) -> None:
    before = [task.train.copy() for task in stream]
    mixed = blurry(stream, 30, rng(seed))
    assert [task.classes for task in mixed] == [task.classes for task in stream]
    for one, two in zip(mixed, stream, strict=True):
        assert np.array_equal(one.test, two.test)
    assert all(np.array_equal(a, t.train) for a, t in zip(before, stream, strict=True))


@given(stream=streams(), seed=seeds)
def test_blurry_is_decided_by_the_generator(stream: list[Task], seed: int) -> None:
    one, two = (blurry(stream, 30, rng(seed)) for _ in range(2))
    assert all(np.array_equal(a.train, b.train) for a, b in zip(one, two, strict=True))


def test_any_sample_may_move_to_any_other_task() -> None:
    """Of 10 samples in the order of the data 4 move, 2 to each of two other tasks."""
    stream = [Task((t,), np.arange(10 * t, 10 * t + 10), np.arange(1)) for t in range(3)]
    came = np.zeros((3, 30))
    for k in range(400):
        for to, task in enumerate(blurry(stream, 40, rng(k))):
            came[to, task.train] += 1 / 400
    share = np.where(np.eye(3, dtype=bool), 0.6, 0.2).repeat(10, 1)
    assert abs(came - share).max() < 5 * np.sqrt(0.25 / 400)


def test_blurry_with_the_papers_numbers() -> None:
    """Ten tasks of 5,000 samples, as for CIFAR-100: 10 % is 50 of each task in every other."""
    rows = np.arange(50_000).reshape(10, -1)
    stream = [Task((t,), r, r[:1]) for t, r in enumerate(rows)]
    mixed = blurry(stream, 10, rng(0))
    assert [len(t.train) for t in mixed] == [sum(_arrivals(t)) + 4500 for t in range(10)]
    for to, task in enumerate(mixed):
        counts = np.bincount(task.train // 5000, minlength=10)
        assert counts[to] == 4500
        assert set(np.delete(counts, to)) <= {55, 56}


def _arrivals(to: int) -> list[int]:
    """500 samples in nine parts: the first five have 56."""
    return [56 if (to if to < t else to - 1) < 5 else 55 for t in range(10) if t != to]


@pytest.mark.parametrize("percent", [0, 100, -5, 120])
def test_bad_percentages(percent: float) -> None:
    with pytest.raises(ValueError, match=f"blurry stream is {percent}, expected between 0 and 100"):
        blurry([task_of(10), task_of(10)], percent, rng(0))


def test_one_task_cannot_be_blurred() -> None:
    with pytest.raises(ValueError, match="blurry"):
        blurry([task_of(10)], 10, rng(0))


# ---------------------------------------------------------------- labels


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    ratio=st.floats(0.001, 1.0),
    seed=seeds,
)
def test_the_label_ratio_is_exact_in_every_class(sizes: list[int], ratio: float, seed: int) -> None:
    data = make_data(sizes, seed)
    mask = labelled(data, ratio, rng(seed))
    assert mask.dtype == np.bool_
    assert mask.shape == (sum(sizes),)
    for c, size in enumerate(sizes):
        assert mask[data.train_y.numpy() == c].sum() == max(1, round(ratio * size))
    assert np.array_equal(mask, labelled(data, ratio, rng(seed)))


def test_another_generator_labels_others() -> None:
    data = make_data([50, 50])
    assert not np.array_equal(labelled(data, 0.2, rng(0)), labelled(data, 0.2, rng(1)))


def test_a_ratio_of_one_labels_all() -> None:
    assert labelled(make_data([3, 40]), 1.0, rng(0)).all()


def test_labelled_samples_are_spread_over_the_class() -> None:
    """Each sample is equally likely to be labelled."""
    data = from_arrays(torch.zeros(100, 2), [0] * 100, torch.zeros(1, 2), [0])
    share = np.mean([labelled(data, 0.2, rng(seed)) for seed in range(400)], 0)
    assert abs(share - 0.2).max() < 0.1  # five standard deviations


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, float("nan")])
def test_bad_ratios(ratio: float) -> None:
    with pytest.raises(ValueError, match=f"label ratio is {ratio}, expected above 0"):
        labelled(make_data([4]), ratio, rng(0))
