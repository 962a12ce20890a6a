"""A small synthetic stream for the checks, with the input shape of a given learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualcba.learner import Learner

TOKENS = 10  # a network of tokens must accept 0 to 9
STEPS = 6  # per task; by default, the adaptor is updated at steps 1 and 6


@dataclass(frozen=True)
class NewTask:
    """A new task with these classes."""

    classes: tuple[int, ...]


@dataclass(frozen=True)
class Arrival:
    """A batch of samples and labels."""

    x: NDArray[Any]
    y: NDArray[np.int64]


@dataclass(frozen=True)
class EndTask:
    """The end of the last task."""


Event = NewTask | Arrival | EndTask


class Material:
    """Synthetic data in the shape and dtype of a learner: a Gaussian cluster per class.

    Several inputs are packed into rows, as the learner stores them.
    """

    def __init__(self, learner: Learner) -> None:
        self.rng = np.random.default_rng(20240)
        self.inputs = learner.inputs
        self.classes = learner.num_classes
        self.batch_size = learner.batch_size
        parts = self.inputs.parts
        self.centres = [self.rng.normal(size=(self.classes, *p.shape)) for p in parts]

    def batch(self, classes: Sequence[int], n: int | None = None) -> Arrival:
        """Return n samples, with nearly equal numbers of each of these classes."""
        n = n or self.batch_size
        y = self.rng.permutation(np.resize(np.asarray(classes, dtype=np.int64), n))
        noisy = [c[y] + 0.5 * self.rng.normal(size=(n, *c.shape[1:])) for c in self.centres]
        parts = zip(noisy, self.inputs.parts, strict=True)
        return Arrival(np.asarray(self.inputs.pack([_typed(x, p.dtype) for x, p in parts])), y)

    def stream(self, steps: int = STEPS, tasks: int = 2) -> list[Event]:
        """Return the events of a stream whose tasks divide all classes.

        The first task has `STEPS` batches, each other task `steps`. The last batch of a task is
        smaller than the others.
        """
        events: list[Event] = []
        parts = np.array_split(np.arange(self.classes), min(tasks, self.classes))
        for part, batches in zip(parts, [STEPS] + [steps] * (len(parts) - 1), strict=True):
            events.append(NewTask(tuple(part.tolist())))
            events += [self.batch(part.tolist()) for _ in range(batches - 1)]
            events.append(self.batch(part.tolist(), max(1, self.batch_size // 2)))
        return [*events, EndTask()]

    def questions(self, n: int = 5) -> NDArray[Any]:
        """Return n samples of all classes, for prediction."""
        return self.batch(range(self.classes), n).x


def _typed(x: NDArray[np.float64], dtype: torch.dtype) -> NDArray[Any]:
    """Return values in the dtype of samples: bytes, floats, or tokens from 0 to `TOKENS` − 1."""
    if dtype == torch.uint8:
        return np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
    if dtype == torch.float32:
        return x.astype(np.float32)
    tokens = np.clip(np.rint(TOKENS / 2 + 2 * x), 0, TOKENS - 1)
    return tokens.astype(np.int32 if dtype == torch.int32 else np.int64)


def play(learner: Learner, events: Sequence[Event]) -> Learner:
    """Pass events to a learner and return the learner."""
    for event in events:
        if isinstance(event, NewTask):
            learner.new_task(event.classes)
        elif isinstance(event, Arrival):
            learner.observe(event.x.copy(), event.y.copy())
        else:
            learner.end_task()
    return learner
