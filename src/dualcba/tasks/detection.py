"""Boundary-free streams: when a task begins and which classes are new, from the labels alone.

The rule looks at two things, both in counts of labels on the host.

**Which classes are new.** Labels since the last boundary are taken to come from two groups of
classes, the task's own and strays, each class of a group as likely as any other of it. The own
classes are the k most frequent ones, with the k under which the counts are most likely,

    n log(n / k) + m log(m / (C − k)) + prior        n own labels, m strays

where strays are at most half of all labels, and a class of them at most half as likely as an own
one. The prior is +1 for each own class that was never seen before the boundary, −2 for each that
was: strays of past tasks are not new because a few of them arrived. From the second task on, as
long as no class from before the boundary has come back, nothing strays, and all that arrived is
new whatever the counts: on a disjoint stream rare classes are new at once.

**When a task begins.** At the first batch; and when labels fit the task no longer. Each label
outside its classes is evidence (+1) for a boundary, each inside is evidence (−2) against it, summed
over batches and never below 0 (Page's CUSUM); 6 declare a boundary, so the first batch of a task
does where it has 6 labels. The labels since the evidence was last 0 are the new task's first. Its
classes are read generously here (prior +1 for all). A task of fewer than 8 labels, or more than a
third of whose labels are their class's only one, is not yet known well enough to be over.

What it cannot know: a first task's classes that are some six times as rare as the others look like
strays (there the class sets have no effect on Dual-CBA), and tasks that share most of their classes
are one task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualcba.errors import expected

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

ENOUGH = 6  # evidence that declares a boundary
AGAINST = 2  # what a label of the task takes from the evidence
LEAST = 8  # labels of a task before it can be over
FRESH, SEEN = 1.0, -2.0  # log prior of being new: never seen before the boundary, or seen


class TaskDetector:
    """Follows the labels of a stream and says when a task begins and which classes are new.

    Parameters
    ----------
    num_classes
        How many classes there are, those to come included.

    >>> detector = TaskDetector(6)
    >>> for classes in ([0, 1], [0, 1], [2, 3]):
    ...     boundary, new = detector.update(np.tile(classes, 4))
    ...     print(boundary, sorted(new))
    True [0, 1]
    False [0, 1]
    True [2, 3]

    References
    ----------
    Page, Continuous inspection schemes, Biometrika 1954.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.number = 0
        self.evidence = 0
        self.new: frozenset[int] = frozenset()
        self._counts = np.zeros(num_classes, dtype=np.int64)  # since the boundary
        self._recent = np.zeros(num_classes, dtype=np.int64)  # of these, since the evidence was 0
        self._before = np.zeros(num_classes, dtype=bool)  # seen before the boundary
        self._own = np.zeros(num_classes, dtype=bool)  # the task's, when the evidence was 0

    def update(self, y: NDArray[np.integer[Any]]) -> tuple[bool, frozenset[int]]:
        """Take a batch's labels, −1 for none; gives whether a task begins with it, and its new."""
        came = np.bincount(y[y >= 0], minlength=self.num_classes)
        boundary = self._weigh(came)
        if came.any():
            self.new = frozenset(np.flatnonzero(self._is_new()).tolist())
        return boundary, self.new

    def _weigh(self, came: Counts) -> bool:
        """Count the labels; whether they begin a task."""
        inside = int(came[self._own].sum())
        outside = int(came.sum()) - inside
        self.evidence = max(0, self.evidence + outside - AGAINST * inside)
        self._counts = self._counts + came
        self._recent = self._recent + came if self.evidence else np.zeros_like(came)
        boundary = self.number == 0 or (self.evidence >= ENOUGH and self._is_known())
        if boundary:
            self._begin()
        if boundary or self.evidence >= ENOUGH:  # a task of which too little is known goes on
            self.evidence = 0
            self._recent = np.zeros_like(came)
        if not self.evidence:
            everything = np.full(self.num_classes, FRESH)
            self._own = self._is_new() | split(self._counts, everything)
        return boundary

    def _is_known(self) -> bool:
        """Whether the task, without the recent labels, shows most of its classes."""
        base = self._counts - self._recent
        return bool(base.sum() >= LEAST and 3 * np.sum(base == 1) <= base.sum())

    def _begin(self) -> None:
        """A task begins with the recent labels; at the first call with all there are."""
        if self.number:
            self._before |= self._counts > self._recent
            self._counts = self._recent
        self.number += 1

    def _is_new(self) -> Mask:
        came = self._counts > 0
        if self.number > 1 and not (came & self._before).any():
            return came
        return split(self._counts, np.where(self._before, SEEN, FRESH))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON takes it."""
        return {
            "number": self.number,
            "evidence": self.evidence,
            "new": sorted(self.new),
            "counts": self._counts.tolist(),
            "recent": self._recent.tolist(),
            "before": self._before.tolist(),
            "own": self._own.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, dtype in {"counts": int, "recent": int, "before": bool, "own": bool}.items():
            arrays[name] = np.array(state[name], dtype=dtype)
            if arrays[name].shape != (self.num_classes,):
                wanted = f"{self.num_classes} of them"
                raise ValueError(expected(f"number of {name}", arrays[name].size, wanted))
        self.number, self.evidence = int(state["number"]), int(state["evidence"])
        self.new = frozenset(state["new"])
        self._counts, self._recent = arrays["counts"], arrays["recent"]
        self._before, self._own = arrays["before"], arrays["own"]


def split(counts: Counts, prior: NDArray[np.float64]) -> Mask:
    """Which classes are the frequent ones, by the likelihood in this module's description.

    >>> split(np.array([9, 1, 7, 1, 0, 0]), np.zeros(6)).tolist()
    [True, False, True, False, False, False]
    """
    own = np.zeros(len(counts), dtype=bool)
    order = np.lexsort((-prior, -counts))[: np.count_nonzero(counts)]
    if not len(order):
        return own
    k = np.arange(1, len(order) + 1)
    n = np.cumsum(counts[order])
    m = n[-1] - n
    spread = np.maximum(len(counts) - k, 1)
    fit = n * np.log(n / k) + m * np.log(np.maximum(m, 1) / spread) + np.cumsum(prior[order])
    fit[(n < m) | (n * spread < 2 * m * k)] = -np.inf
    own[order[: k[fit.argmax()]]] = True
    return own
