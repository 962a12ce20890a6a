"""Real-time evaluation: the stream does not wait for a method (Ghunaim et al., CVPR 2023).

A batch arrives at each of the times 0, 1, 2, … A step of a method of relative cost k ≥ 1 takes the
time k, so the i-th step (from 0) runs from i·k to (i + 1)·k, on the newest batch when it begins:
batch ⌊i·k⌋. The batches in between are never trained on. What arrives at time n is predicted by the
network as it is then: with the steps that have ended by n, without the one in progress. The
relative cost of ER is 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Event:
    """Something that happens in a stream: a task or a batch, by its number from 0.

    `begin`: the learner is told of a task. `arrive`: a batch arrives. `train`: the step on a batch
    ends. `end`: the task ends for the learner. `tick`: the time after the arrival of a batch is up.
    """

    kind: Literal["begin", "arrive", "train", "end", "tick"]
    number: int


def exact(cost: float) -> Fraction:
    """Return the decimal that a number is written as, so that 10 steps of 1.1 take 11."""
    return Fraction(repr(float(cost)))


def trained_batches(count: int, cost: float) -> list[int]:
    """Return which of `count` batches are trained on: those of steps that end by the time `count`.

    >>> trained_batches(8, 2.3), trained_batches(3, 1)
    ([0, 2, 4], [0, 1, 2])
    """
    k = exact(cost)
    return [math.floor(i * k) for i in range(math.floor(count / k))]


def events(lengths: Sequence[int], cost: float) -> Iterator[Event]:
    """Return what happens in a stream, in order.

    A task is announced when its first batch arrives, or if a step on an earlier task is in progress
    then, before the next batch or step after it, or at the end of the stream. A task ends for the
    learner with its last batch, or if a step on it is in progress then, when the next task is
    announced.

    Parameters
    ----------
    lengths
        The number of batches of each task.
    cost
        The relative cost of a step, at least 1.

    >>> [f"{e.kind} {e.number}" for e in events([2, 1], 2)]
    ['begin 0', 'arrive 0', 'tick 0', 'arrive 1', 'train 0', 'end 0', 'tick 1',
     'begin 1', 'arrive 2', 'end 1', 'tick 2']
    """
    k = exact(cost)
    owner = np.repeat(np.arange(len(lengths)), lengths).tolist()
    steps = trained_batches(len(owner), cost)
    before = np.searchsorted(steps, np.cumsum([0, *lengths[:-1]]))  # steps on earlier tasks
    told, done = -1, 0  # the last announced task, and the number of steps that have ended
    for n, task in enumerate(owner):
        ended, final = math.floor((n + 1) / k), n + 1 == len(owner)
        happens = [Event("arrive", n), *(Event("train", batch) for batch in steps[done:ended])]
        for event in [*happens, *[None] * final]:  # at the end all tasks are announced
            for new in range(told + 1, task + 1):
                if before[new] <= done:
                    told = new
                    yield Event("begin", new)
            if event is not None:
                yield event
                done += event.kind == "train"
        if final or (owner[n + 1] > task == told and before[task + 1] <= done):
            yield Event("end", told)
        yield Event("tick", n)


def parted(found: Iterable[Event], ticks: int) -> tuple[Counter[str], list[Event]]:
    """Part events after so many ticks: the number of each kind before, and the list after.

    >>> past, left = parted(events([2, 1], 2), 1)
    >>> past["arrive"], past["train"], left[0]
    (1, 0, Event(kind='arrive', number=1))
    """
    every = list(found)
    last = Event("tick", ticks - 1)
    done = every.index(last) + 1 if ticks else 0
    return Counter(event.kind for event in every[:done]), every[done:]
