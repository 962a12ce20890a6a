"""Passes over a task merged with the exemplars of earlier tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data import Task, batches
from dualcba.engine import Engine
from dualcba.memory import Memory
from dualcba.memory.exemplars import drawable_rows
from dualcba.methods import Method

Indices = NDArray[np.int64]
Arrive = Callable[[Indices], Iterator[tuple[Tensor, Tensor]]]
"""Maps the rows of a pass to its batches."""


def merged_rows(
    stream: Sequence[Task],
    labels: Indices,
    filled_after: Callable[[Indices], int],
    *,
    batch_size: int,
    epochs: int,
    held_out: int,
    rng: np.random.Generator,
) -> list[list[Indices]]:
    """Return the rows of each pass over each task, (steps, batch_size).

    Row len(labels) + k is the k-th exemplar in the memory when the task begins. The number of
    exemplars follows from the samples of earlier tasks.

    Parameters
    ----------
    stream, labels
        The tasks, and the labels of all training samples.
    filled_after
        Called with the labels of each task in turn; returns the number of exemplars after it.
    batch_size, epochs
        Samples per step, and passes over each task.
    held_out
        `held_out` of the exemplar memory.
    rng
        Shuffles each pass.
    """
    stored, schedule = 0, []
    for task in stream:
        exemplars = len(labels) + drawable_rows(stored, held_out)
        both = replace(task, train=np.concatenate([task.train, exemplars]))
        passes = [batches(both, batch_size, rng) for _ in range(epochs)]
        first = passes[0][passes[0] < len(labels)]  # the samples that the method reads again
        stored = filled_after(labels[first])
        schedule.append(passes)
    return schedule


def with_exemplars(
    arrive: Arrive, method: Method, memory: Memory, count: int, engine: Engine
) -> Arrive:
    """Return a function like `arrive` that reads rows from `count` on from the method's memory."""

    def merged(rows: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        index = engine.receive(torch.from_numpy(rows - count))
        for k, (x, y) in enumerate(arrive(np.minimum(rows, count - 1))):
            with engine.scope():
                stored = index[k] >= 0
                at = index[k].clamp(0, max(memory.filled - 1, 0))
                shape = (-1, *[1] * (x.dim() - 1))
                x = torch.where(stored.view(shape), method.mixed(memory.x[at]), x)
                y = torch.where(stored, memory.y[at], y)
            yield x, y

    return merged
