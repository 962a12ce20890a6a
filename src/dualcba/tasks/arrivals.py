"""Detect classes that arrive while those of the current task stay, as in sliding or growing sets.

Such a class changes too few labels for the rule on boundaries in `dualcba.tasks.detection`. Here
evidence is collected for each class separately.

**Settled.** A task is settled when it has at least 16 (c + 1) labels, where c is the number of
classes that have appeared in it. By then almost every own class of usual frequency has appeared:
all but one in 10⁷.

**Waiting.** A class waits if it appears for the first time in a settled task. A stray waits too: a
class that has appeared, but has never been an own class at the end of a task. It no longer waits if
it has two labels when the task is settled.

**Arrival.** From then on the evidence of a waiting class grows by 1 with each of its labels, and
falls by 1 / 2(k + 1) with every label of any class (Page's CUSUM, never below 0), where k is the
number of own classes that do not wait. So the evidence grows if the class is more than half as
frequent as an own class, which strays are not. Evidence of 6 declares a boundary, and all classes
with evidence arrive. The labels since no class had evidence belong to the new task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

SETTLED = 16  # labels per class of a task that is settled
ARRIVED = 6.0  # the evidence that declares an arrival


class Arrivals:
    """The waiting classes, and the evidence that they have arrived.

    Arrays are replaced, never changed in place, so `copy.copy` is enough to copy the state.
    """

    def __init__(self, num_classes: int) -> None:
        self.settled = False
        self.waiting = np.zeros(num_classes, dtype=bool)
        self.strays = np.zeros(num_classes, dtype=bool)
        self.evidence = np.zeros(num_classes)
        self.since = np.zeros(num_classes, dtype=np.int64)  # labels since there was no evidence

    def update(self, came: Counts, counts: Counts, before: Mask, own: Mask) -> Mask:
        """Update with the label counts of a batch, and return the mask of classes that arrive.

        `counts` are the label counts of the task before the batch. `before` are the classes that
        were seen before the task, and `own` the classes of the task.
        """
        if not self.settled and _settles(counts):
            self.settled = True
            self.waiting = self.waiting & (counts < 2)
        if self.settled:
            self.waiting = self.waiting | ((came > 0) & (counts == 0) & ~before)
        if not self.settled or not self.waiting.any():
            return np.zeros_like(own)
        classes = 1 + np.count_nonzero(own & ~self.waiting)
        gained = self.evidence + came - came.sum() / (2 * classes)
        self.evidence = np.where(self.waiting, np.maximum(gained, 0.0), 0.0)
        self.since = self.since + came if self.evidence.any() else np.zeros_like(came)
        if self.evidence.max() < ARRIVED:
            return np.zeros_like(own)
        return np.asarray(self.evidence > 0)

    def begin(self, appeared: Mask, own: Mask) -> None:
        """Begin a task; `appeared` are the classes first seen in the last task, `own` its own."""
        self.strays = (self.strays | appeared) & ~own
        self.waiting, self.settled = self.strays, False
        self.evidence = np.zeros_like(self.evidence)
        self.since = np.zeros_like(self.since)

    def start(self, counts: Counts) -> None:
        """Continue in a task with these label counts, as if there were no strays (`is_plain`)."""
        self.settled = _settles(counts)

    def is_plain(self, counts: Counts) -> bool:
        """Return whether a new object with the task's label counts would be in the same state."""
        strays = self.waiting.any() or self.strays.any()
        return not strays and self.settled == _settles(counts)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on, for JSON."""
        arrays = {"waiting": self.waiting, "strays": self.strays, "since": self.since}
        state = {name: array.tolist() for name, array in arrays.items()}
        return {"settled": self.settled, "evidence": self.evidence.tolist(), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.settled = bool(state["settled"])
        self.waiting = np.array(state["waiting"], dtype=bool)
        self.strays = np.array(state["strays"], dtype=bool)
        self.evidence = np.array(state["evidence"], dtype=float)
        self.since = np.array(state["since"], dtype=np.int64)


def _settles(counts: Counts) -> bool:
    return bool(counts.sum() >= SETTLED * (1 + np.count_nonzero(counts)))
