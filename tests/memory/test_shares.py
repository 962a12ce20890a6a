"""Shares of tasks: the rows of each, and how many exemplars a run expects in advance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualcba.memory import Herding, TaskShares
from dualcba.memory.herding import class_counter
from dualcba.memory.shares import interleaved, share_counts, task_counter

CLASSES = 5
sizes, held_outs = st.integers(1, 40), st.sampled_from([0, 2, 3, 10])
labels = st.lists(st.integers(0, CLASSES - 1), max_size=30)  # of a task, with any classes
streams = st.lists(labels, min_size=1, max_size=9)


def samples(task: list[int]) -> tuple[Tensor, Tensor]:
    y = torch.tensor(task, dtype=torch.long)
    return torch.arange(len(y), dtype=torch.float32).unsqueeze(1), y


@given(sizes, held_outs, streams)
def test_the_rows_of_task_shares_are_known_in_advance(
    size: int, held_out: int, stream: list[list[int]]
) -> None:
    memory = TaskShares(size, (1,), torch.float32, held_out=held_out)
    after = task_counter(size, held_out)
    for task in stream:
        memory.share(*samples(task))
        assert after(np.array(task, np.int64)) == memory.filled <= size
        owner = memory.owner[: memory.filled]
        assert torch.equal(owner, owner.sort().values)


@pytest.mark.parametrize("by_features", [False, True])
@given(sizes, held_outs, streams)
def test_the_rows_of_herding_are_known_in_advance(
    by_features: bool, size: int, held_out: int, stream: list[list[int]]
) -> None:
    memory = Herding(size, (1,), torch.float32, held_out=held_out)
    after = class_counter(size, CLASSES)
    for task in stream:
        memory.fill(*samples(task), (lambda x: x) if by_features else None)
        assert after(np.array(task, np.int64)) == memory.filled <= size


@given(sizes, held_outs, streams)
def test_no_share_is_larger_than_another_that_had_enough(
    size: int, held_out: int, stream: list[list[int]]
) -> None:
    """With more rows than tasks; a share never grows again."""
    memory = TaskShares(size, (1,), torch.float32, held_out=held_out)
    tasks = [task for task in stream if task][:size]
    for k, task in enumerate(tasks, 1):
        before = np.bincount(memory.owner[: memory.filled].numpy())
        memory.share(*samples(task))
        counts = np.bincount(memory.owner[: memory.filled].numpy())
        assert counts.max() <= size // k
        assert counts[:-1].tolist() == np.minimum(before, size // k).tolist()
        assert counts[-1] >= min(len(task), size // k)


def test_a_memory_with_fewer_rows_than_tasks_is_not_emptied() -> None:
    memory, after = TaskShares(2, (1,)), task_counter(2, 0)
    for label in range(5):
        y = torch.full((6,), label)
        memory.share(y.unsqueeze(1).byte(), y)
        assert memory.filled == after(y.numpy()) == 2
    assert memory.y[:2].tolist() == [0, 1]  # of the first tasks, as classes of `Herding`
    assert memory.owner[:2].tolist() == [0, 1]


def test_a_task_without_samples_has_no_share() -> None:
    memory, after = TaskShares(8, (1,)), task_counter(8, 0)
    for n in (0, 9):
        y = torch.zeros(n, dtype=torch.long)
        memory.share(y.unsqueeze(1).byte(), y)
        assert memory.filled == after(y.numpy()) == min(n, 8)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 40))
def test_interleaved_rows(own: int, old: int, n: int) -> None:
    n = min(n, own + old)
    rows = interleaved(np.arange(own), own + np.arange(old), n)
    assert len(set(rows.tolist())) == len(rows) == n
    mixed = rows >= own
    count = int(mixed.sum())
    assert abs(count - n * old / max(1, own + old)) <= 0.5
    assert rows[~mixed].tolist() == list(range(n - count))  # the first own rows
    stride = np.ceil((rows[mixed] - own) * count / max(1, old))
    assert stride.tolist() == list(range(count))  # one of each of equal parts of the old rows
    assert abs(mixed.cumsum() - np.arange(1, n + 1) * count / max(1, n)).max(initial=0) < 0.51


def test_share_counts() -> None:
    assert share_counts(10, np.zeros(0, np.int64), 99).tolist() == [10]
    assert share_counts(10, np.array([10]), 3).tolist() == [5, 3]
    assert share_counts(10, np.array([5, 3]), 99).tolist() == [3, 3, 3]
    assert share_counts(2, np.array([1, 1]), 99).tolist() == [1, 1, 0]


def test_task_shares_continue_from_a_state() -> None:
    memory, other = (TaskShares(9, (1,), torch.float32, held_out=3) for _ in range(2))
    memory.share(*samples([0, 1] * 5))
    other.load_state_dict(memory.state_dict())
    for one in (memory, other):
        one.share(*samples([2, 3] * 5))
    for name, value in memory.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
