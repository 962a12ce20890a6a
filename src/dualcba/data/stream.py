"""Streams: which samples arrive in which task, in which order and batch, with which labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset
from dualcba.errors import expected

Indices = NDArray[np.int64]
Tasks = int | Sequence[int] | Sequence[Sequence[int]]
"""A number of equal tasks, the sizes of the tasks, or their classes."""


@dataclass(frozen=True)
class Task:
    """Its own classes, and the rows of its training and test samples."""

    classes: tuple[int, ...]
    train: Indices
    test: Indices


def disjoint(data: Dataset, tasks: Tasks, order: Sequence[int] | None = None) -> list[Task]:
    """Split the classes, in label order or the given one; no class in two tasks.

    >>> from dualcba.data.readers.digits import digits
    >>> [t.classes for t in disjoint(digits(), 5)]
    [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    >>> [t.classes for t in disjoint(digits(), [[3, 1], [7]])]
    [(3, 1), (7,)]
    """
    train_y, test_y = data.train_y.numpy(), data.test_y.numpy()
    stream = []
    for group in split_classes(data.num_classes, tasks, order):
        train = np.flatnonzero(np.isin(train_y, group))
        test = np.flatnonzero(np.isin(test_y, group))
        for part, rows in (("training", train), ("test", test)):
            if not len(rows):
                raise ValueError(f"classes {list(group)} of {data.name} have no {part} sample")
        stream.append(Task(tuple(int(c) for c in group), train, test))
    return stream


def split_classes(
    num_classes: int, tasks: Tasks, order: Sequence[int] | None = None
) -> list[list[int]]:
    """The classes of each task.

    >>> split_classes(5, [2, 3])
    [[0, 1], [2, 3, 4]]
    >>> split_classes(4, 2, order=[3, 0, 1, 2])
    [[3, 0], [1, 2]]
    """
    classes = list(range(num_classes)) if order is None else list(order)
    if not _whole(classes) or sorted(classes) != list(range(num_classes)):
        raise ValueError(expected("class order", classes, f"each of 0 to {num_classes - 1} once"))
    if isinstance(tasks, int):
        if tasks < 1 or num_classes % tasks:
            raise ValueError(expected("tasks", tasks, f"a divisor of the {num_classes} classes"))
        tasks = [num_classes // tasks] * tasks
    if _whole(tasks):
        sizes = [int(t) for t in tasks]  # type: ignore[arg-type]
        if not sizes or min(sizes) < 1 or sum(sizes) > num_classes:
            wanted = f"sizes of at least 1 that sum to at most {num_classes}"
            raise ValueError(expected("tasks", sizes, wanted))
        ends = np.cumsum(sizes)
        return [classes[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    groups = [list(t) if isinstance(t, Sequence) else [] for t in tasks]
    flat = [c for group in groups for c in group]
    if not _whole(flat) or len(set(flat)) != len(flat) or not set(flat) <= set(classes):
        groups = []
    if not groups or not all(groups):
        wanted = f"lists of distinct classes from 0 to {num_classes - 1}"
        raise ValueError(expected("tasks", tasks, wanted))
    return groups


def _whole(values: Sequence[object]) -> bool:
    """Whether all are whole numbers."""
    return all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)


def blurry(stream: Sequence[Task], percent: float, rng: np.random.Generator) -> list[Task]:
    """Move `percent` of each task's samples to the other tasks, in equal disjoint parts."""
    if len(stream) < 2:
        raise ValueError(expected("tasks of a blurry stream", len(stream), "at least 2"))
    if not 0 < percent < 100:
        raise ValueError(expected("percent of a blurry stream", percent, "between 0 and 100"))
    kept, arriving = [], [[] for _ in stream]  # type: list[Indices], list[list[Indices]]
    for t, task in enumerate(stream):
        rows = rng.permutation(task.train)
        moved, stays = np.split(rows, [round(len(rows) * percent / 100)])
        kept.append(stays)
        others = [i for i in range(len(stream)) if i != t]
        for other, part in zip(others, np.array_split(moved, len(others)), strict=True):
            arriving[other].append(part)
    mixed = [np.concatenate([k, *a]) for k, a in zip(kept, arriving, strict=True)]
    return [replace(task, train=rows) for task, rows in zip(stream, mixed, strict=True)]


def labelled(data: Dataset, ratio: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which training samples keep their label: the same share of every class, at least one."""
    if not 0 < ratio <= 1:
        raise ValueError(expected("label ratio", ratio, "above 0 and at most 1"))
    y = data.train_y.numpy()
    mask = np.zeros(len(y), dtype=bool)
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        mask[rng.permutation(rows)[: max(1, round(ratio * len(rows)))]] = True
    return mask


def batches(task: Task, batch_size: int, rng: np.random.Generator) -> Indices:
    """(steps, batch_size) rows, each sample once, shuffled; an incomplete last batch is dropped."""
    steps = len(task.train) // batch_size
    if not steps:
        wanted = f"at most the {len(task.train)} samples of the task with classes {task.classes}"
        raise ValueError(expected("batch_size", batch_size, wanted))
    return rng.permutation(task.train)[: steps * batch_size].reshape(steps, batch_size)


def cycled(
    task: Task, known: NDArray[np.bool_], batch_size: int, rng: np.random.Generator
) -> tuple[Indices, NDArray[np.bool_]]:
    """A labelled batch beside each unlabelled one, as FixMatch is usually trained.

    Gives (steps, 2·batch_size) rows, labelled ones first, and which of them come for the first
    time. Each unlabelled sample comes once, an incomplete last batch being dropped; labelled ones
    come round and round, shuffled once.
    """
    has = known[task.train]
    some, rest = rng.permutation(task.train[has]), rng.permutation(task.train[~has])
    steps = len(rest) // batch_size
    if not steps or not len(some):
        wanted = f"at most the {len(rest)} unlabelled samples of a task, and a labelled one"
        raise ValueError(expected("batch_size of cycled batches", batch_size, wanted))
    place = np.arange(steps * batch_size)
    rows = np.stack([some[place % len(some)], rest[place]]).reshape(2, steps, batch_size)
    first = np.stack([place < len(some), place >= 0]).reshape(2, steps, batch_size)
    return np.concatenate(list(rows), 1), np.concatenate(list(first), 1)
