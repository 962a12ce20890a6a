"""The disjoint stream: tasks in label order, a single pass in shuffled batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualcba import Dataset, from_arrays, load_dataset
from dualcba.data import batches, disjoint


def test_tasks_in_label_order_without_overlap(images: Dataset) -> None:
    stream = disjoint(images, 3)
    assert [t.classes for t in stream] == [(0, 1), (2, 3), (4, 5)]
    for task in stream:
        assert sorted(set(images.train_y[task.train].tolist())) == list(task.classes)
        assert sorted(set(images.test_y[task.test].tolist())) == list(task.classes)
    rows = np.concatenate([t.train for t in stream])
    assert sorted(rows.tolist()) == list(range(len(images.train_y)))
    rows = np.concatenate([t.test for t in stream])
    assert sorted(rows.tolist()) == list(range(len(images.test_y)))


@pytest.mark.parametrize("tasks", [1, 2, 6])
def test_any_divisor_of_the_classes(images: Dataset, tasks: int) -> None:
    assert [len(t.classes) for t in disjoint(images, tasks)] == [6 // tasks] * tasks


@pytest.mark.parametrize("tasks", [0, -1, 4, 5, 7])
def test_other_numbers_are_refused(images: Dataset, tasks: int) -> None:
    with pytest.raises(ValueError, match=f"tasks is {tasks}, expected a divisor of the 6 classes"):
        disjoint(images, tasks)


def test_split_digits() -> None:
    stream = disjoint(load_dataset("digits"), 5)
    assert [t.classes for t in stream] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert all(len(t.train) > 250 and len(t.test) > 60 for t in stream)


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_task_without_samples(part: str) -> None:
    x = np.zeros((4, 2))
    full, half = [0, 1, 2, 3], [0, 1, 0, 1]
    y, ty = (half, full) if part == "training" else (full, half)
    data = from_arrays(x, y, x, ty, num_classes=4, name="odd")
    with pytest.raises(ValueError, match=rf"classes \[2, 3\] of odd have no {part} sample"):
        disjoint(data, 2)


def test_a_single_pass_without_the_incomplete_batch(images: Dataset) -> None:
    task = disjoint(images, 3)[1]  # 48 samples
    rows = batches(task, 10, np.random.default_rng(0))
    assert rows.shape == (4, 10)
    flat = rows.ravel().tolist()
    assert len(set(flat)) == 40
    assert set(flat) <= set(task.train.tolist())


def test_shuffled_by_the_generator_alone(images: Dataset) -> None:
    task = disjoint(images, 3)[0]
    a, b, c = (batches(task, 8, np.random.default_rng(s)) for s in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(a.ravel(), np.sort(a.ravel()))
    mixed = images.train_y[torch.from_numpy(a)].float().mean(1)
    assert float(mixed.std()) < 0.4  # both classes in most batches


def test_one_batch_may_be_the_whole_task(images: Dataset) -> None:
    task = disjoint(images, 3)[0]
    assert batches(task, 48, np.random.default_rng(0)).shape == (1, 48)


def test_a_batch_larger_than_the_task(images: Dataset) -> None:
    task = disjoint(images, 3)[0]
    with pytest.raises(ValueError, match=r"batch_size is 49, expected at most the 48 samples"):
        batches(task, 49, np.random.default_rng(0))
