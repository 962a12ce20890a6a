"""Streams: which samples arrive in which task, in which order, in which batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset
from dualcba.errors import expected

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Its own classes, and the rows of its training and test samples."""

    classes: tuple[int, ...]
    train: Indices
    test: Indices


def disjoint(data: Dataset, tasks: int) -> list[Task]:
    """Equal numbers of classes per task, in label order; no class in two tasks.

    >>> from dualcba.data.digits import digits
    >>> [t.classes for t in disjoint(digits(), 5)]
    [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    """
    if tasks < 1 or data.num_classes % tasks:
        wanted = f"a divisor of the {data.num_classes} classes of {data.name}"
        raise ValueError(expected("tasks", tasks, wanted))
    groups = np.arange(data.num_classes).reshape(tasks, -1)
    train_y, test_y = data.train_y.numpy(), data.test_y.numpy()
    stream = []
    for group in groups:
        train = np.flatnonzero(np.isin(train_y, group))
        test = np.flatnonzero(np.isin(test_y, group))
        for part, rows in (("training", train), ("test", test)):
            if not len(rows):
                raise ValueError(f"classes {group.tolist()} of {data.name} have no {part} sample")
        stream.append(Task(tuple(group.tolist()), train, test))
    return stream


def batches(task: Task, batch_size: int, rng: np.random.Generator) -> Indices:
    """(steps, batch_size) rows, each sample once, shuffled; an incomplete last batch is dropped."""
    steps = len(task.train) // batch_size
    if not steps:
        wanted = f"at most the {len(task.train)} samples of the task with classes {task.classes}"
        raise ValueError(expected("batch_size", batch_size, wanted))
    return rng.permutation(task.train)[: steps * batch_size].reshape(steps, batch_size)
