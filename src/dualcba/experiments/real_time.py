"""Real-time evaluation: the stream does not wait for a method (Ghunaim et al., CVPR 2023).

A batch arrives at each time 0, 1, 2, … A step of a method with relative cost k ≥ 1 takes time k. So
step i (from 0) runs from i·k to (i + 1)·k, on the newest batch at its start: batch ⌊i·k⌋. The
batches in between are never trained on. The batch that arrives at time n is predicted by the
network after the steps that have ended by time n, without the one in progress. The relative cost of
ER is 1.
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
    """An event of a stream, with the number of a task or a batch, from 0.

    `begin`: a task is announced to the learner. `arrive`: a batch arrives. `train`: the step on a
    batch ends. `end`: a task ends for the learner. `tick`: the time unit after the arrival of a
    batch ends.
    """

    kind: Literal["begin", "arrive", "train", "end", "tick"]
    number: int


def exact(cost: float) -> Fraction:
    """Return the exact fraction of a number's decimal digits, so that 10 steps of 1.1 take 11."""
    return Fraction(repr(float(cost)))


def trained_batches(count: int, cost: float) -> list[int]:
    """Return the batches out of `count` that are trained on, by steps that end by time `count`.

    >>> trained_batches(8, 2.3), trained_batches(3, 1)
    ([0, 2, 4], [0, 1, 2])
    """
    k = exact(cost)
    return [math.floor(i * k) for i in range(math.floor(count / k))]


def events(lengths: Sequence[int], cost: float) -> Iterator[Event]:
    """Yield the events of a stream in order.

    A task is announced when its first batch arrives. If a step on an earlier task is in progress at
    that time, it is announced before the next batch or step after that one, or at the end of the
    stream. A task ends for the learner with its last batch; if a step on it is in progress at that
    time, it ends when the next task is announced.


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
    """Split events after `ticks` ticks: return the counts by kind before, and the events after.

    >>> past, left = parted(events([2, 1], 2), 1)
    >>> past["arrive"], past["train"], left[0]
    (1, 0, Event(kind='arrive', number=1))
    """
    every = list(found)
    last = Event("tick", ticks - 1)
    done = every.index(last) + 1 if ticks else 0
    return Counter(event.kind for event in every[:done]), every[done:]
