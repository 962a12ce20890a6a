"""Streams: divide a dataset into tasks, and order the samples of a task into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, IntArray
from dualcba.errors import expected

TaskDivision = int | Sequence[int] | Sequence[Sequence[int]]
"""A number of equal tasks, the number of classes of each task, or the classes of each task."""


@dataclass(frozen=True)
class Task:
    """The classes of a task, and the indices of its training and test samples in the dataset."""

    classes: tuple[int, ...]
    train: IntArray
    test: IntArray
    ordered: bool = False
    """Whether the training samples arrive in the order of `train`, instead of shuffled."""

    def arrivals(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        """Return some training samples of the task in the order in which they arrive."""
        return rows if self.ordered else rng.permutation(rows)


def disjoint(data: Dataset, tasks: TaskDivision, order: Sequence[int] | None = None) -> list[Task]:
    """Divide a dataset into tasks with disjoint classes.

    Parameters
    ----------
    data
        The dataset.
    tasks
        A number of tasks of equal size, the number of classes of each task, or lists of classes.
    order
        The order of the classes; by default that of the labels.

    >>> from dualcba.data.readers.digits import digits
    >>> [t.classes for t in disjoint(digits(), 5)]
    [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    >>> [t.classes for t in disjoint(digits(), [[3, 1], [7]])]
    [(3, 1), (7,)]
    """
    train_y, test_y = data.train_y.numpy(), data.test_y.numpy()
    stream = []
    for classes in split_classes(data.num_classes, tasks, order):
        train = np.flatnonzero(np.isin(train_y, classes))
        test = np.flatnonzero(np.isin(test_y, classes))
        for part, rows in (("training", train), ("test", test)):
            if not len(rows):
                raise ValueError(f"classes {list(classes)} of {data.name} have no {part} sample")
        stream.append(Task(tuple(int(c) for c in classes), train, test))
    return stream


def split_classes(
    num_classes: int, tasks: TaskDivision, order: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the classes of each task; see `disjoint` for `tasks` and `order`.

    >>> split_classes(5, [2, 3])
    [[0, 1], [2, 3, 4]]
    >>> split_classes(4, 2, order=[3, 0, 1, 2])
    [[3, 0], [1, 2]]
    """
    classes = list(range(num_classes)) if order is None else list(order)
    if not _all_integers(classes) or sorted(classes) != list(range(num_classes)):
        raise ValueError(expected("class order", classes, f"each of 0 to {num_classes - 1} once"))
    if isinstance(tasks, int):
        if tasks < 1 or num_classes % tasks:
            raise ValueError(expected("tasks", tasks, f"a divisor of the {num_classes} classes"))
        tasks = [num_classes // tasks] * tasks
    if _all_integers(tasks):
        return _split_by_size(classes, [int(t) for t in tasks])  # type: ignore[arg-type]
    return _check_groups(tasks, num_classes)


def _split_by_size(classes: list[int], sizes: list[int]) -> list[list[int]]:
    if not sizes or min(sizes) < 1 or sum(sizes) > len(classes):
        wanted = f"sizes of at least 1 that sum to at most {len(classes)}"
        raise ValueError(expected("tasks", sizes, wanted))
    ends = np.cumsum(sizes)
    return [classes[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _check_groups(tasks: Sequence[object], num_classes: int) -> list[list[int]]:
    """Return the given lists of classes, or raise unless their classes are valid and distinct."""
    groups = [list(t) if isinstance(t, Sequence) else [] for t in tasks]
    flat = [c for group in groups for c in group]
    valid = _all_integers(flat) and set(flat) <= set(range(num_classes))
    if not valid or len(set(flat)) != len(flat) or not groups or not all(groups):
        wanted = f"lists of distinct classes from 0 to {num_classes - 1}"
        raise ValueError(expected("tasks", tasks, wanted))
    return groups


def _all_integers(values: Sequence[object]) -> bool:
    return all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)


def blurry(stream: Sequence[Task], percent: float, rng: np.random.Generator) -> list[Task]:
    """Move `percent` of each task's training samples to the other tasks, divided equally."""
    if len(stream) < 2:
        raise ValueError(expected("tasks of a blurry stream", len(stream), "at least 2"))
    if not 0 < percent < 100:
        raise ValueError(expected("percent of a blurry stream", percent, "between 0 and 100"))
    staying, arriving = [], [[] for _ in stream]  # type: list[IntArray], list[list[IntArray]]
    for t, task in enumerate(stream):
        rows = rng.permutation(task.train)
        moved, rest = np.split(rows, [round(len(rows) * percent / 100)])
        staying.append(rest)
        others = [i for i in range(len(stream)) if i != t]
        for other, part in zip(others, np.array_split(moved, len(others)), strict=True):
            arriving[other].append(part)
    mixed = [np.concatenate([s, *a]) for s, a in zip(staying, arriving, strict=True)]
    return [replace(task, train=rows) for task, rows in zip(stream, mixed, strict=True)]


def labelled(
    data: Dataset, ratio: float, rng: np.random.Generator, among: IntArray | None = None
) -> NDArray[np.bool_]:
    """Choose the training samples that keep their label, optionally only among some samples.

    Returns a mask of shape (len(data.train_y),) that is True for the fraction `ratio` of each
    class, and for at least one sample of each.
    """
    if not 0 < ratio <= 1:
        raise ValueError(expected("label ratio", ratio, "above 0 and at most 1"))
    y = data.train_y.numpy()
    mask = np.zeros(len(y), dtype=bool)
    given = np.arange(len(y)) if among is None else np.sort(among)
    for c in np.unique(y[given]):
        rows = given[y[given] == c]
        mask[rng.permutation(rows)[: max(1, round(ratio * len(rows)))]] = True
    return mask


def batches(task: Task, batch_size: int, rng: np.random.Generator) -> IntArray:
    """Shuffle the training samples of a task into batches; an ordered task keeps its order.

    Returns sample indices of shape (steps, batch_size). Each sample occurs at most once; an
    incomplete last batch is dropped.
    """
    steps = len(task.train) // batch_size
    if not steps:
        wanted = f"at most the {len(task.train)} samples of the task with classes {task.classes}"
        raise ValueError(expected("batch_size", batch_size, wanted))
    return task.arrivals(task.train, rng)[: steps * batch_size].reshape(steps, batch_size)


def cycled(
    task: Task,
    is_labelled: NDArray[np.bool_],
    batch_size: int,
    rng: np.random.Generator,
    *,
    every: bool = False,
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Combine each unlabelled batch of a task with a labelled batch, as is usual for FixMatch.

    Each unlabelled sample occurs at most once; an incomplete last batch is dropped. The labelled
    samples are shuffled once and repeated as often as needed. An ordered task keeps its order.

    Parameters
    ----------
    task
        The task.
    is_labelled
        Mask of the training samples that have a label, as returned by `labelled`.
    batch_size
        The number of labelled and the number of unlabelled samples of each step.
    rng
        Shuffles the samples.
    every
        Whether the labelled samples are also among the unlabelled ones.

    Returns
    -------
    rows
        Sample indices of shape (steps, 2 · batch_size), labelled samples first.
    first
        Mask of the same shape: whether the sample occurs for the first time. With `every`, it is
        False for the unlabelled half of a batch.
    """
    mask = is_labelled[task.train]
    with_label = task.arrivals(task.train[mask], rng)
    without_label = task.arrivals(task.train if every else task.train[~mask], rng)
    steps = len(without_label) // batch_size
    if not steps or not len(with_label):
        number = len(without_label)
        wanted = f"at most the {number} unlabelled samples of a task, and a labelled one"
        raise ValueError(expected("batch_size of cycled batches", batch_size, wanted))
    position = np.arange(steps * batch_size)
    shape = (2, steps, batch_size)
    rows = np.stack([with_label[position % len(with_label)], without_label[position]])
    first = np.stack([position < len(with_label), np.full(len(position), not every)])
    return np.concatenate([*rows.reshape(shape)], 1), np.concatenate([*first.reshape(shape)], 1)
