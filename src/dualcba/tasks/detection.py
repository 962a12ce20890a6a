"""Inference of task boundaries and of new classes from the labels of a stream.

Both rules use counts of labels on the host.

**New classes.** The labels since the last boundary are modelled as a mixture of two groups of
classes: the task's own classes and strays. All classes of a group are equally likely. The own
classes are the k most frequent ones, with the k that maximises the log-likelihood plus prior

    n log(n / k) + m log(m / (C − k)) + prior        n own labels, m strays

under two constraints: at most half of all labels are strays, and a stray class is at most half as
likely as an own class. The prior is +1 for each own class that was never seen before the boundary,
and −2 for each own class that was, so a few strays of an earlier task do not make its classes new.
From the second task on, as long as no class from before the boundary appears, there are no strays:
all classes since the boundary are new, whatever their counts. So on a disjoint stream a rare class
is new with its first sample.

**Boundaries.** A task begins at the first batch, and when the labels no longer fit the current
task. Each label outside the task's classes is evidence for a boundary (+1), each label inside is
evidence against it (−2). The sum over batches is never below 0 (Page's CUSUM). A sum of 6 declares
a boundary, so the first batch of a new task declares one if it has 6 labels. The labels since the
sum was last 0 belong to the new task. For this rule the task's classes are estimated with a prior
of +1 for all classes. A task cannot end before it has 8 labels, or while more than a third of its
labels are the only ones of their class.

**Arrivals.** A task also begins when a class arrives and the others stay, as with a sliding or
growing set of classes; `dualcba.tasks.arrivals` has the rule. In such a task only classes that were
not seen before it can be new: the own classes among them, as above, with a prior of +1.

Limits: in the first task, a class that is about six times rarer than the others is taken for a
stray (class sets have no effect on Dual-CBA there). Classes that arrive faster than one in 16
labels per class of the task become new together. Tasks are merged if they share most of their
classes and the later one has no class that has never been an own class.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualcba.errors import expected
from dualcba.tasks.arrivals import Arrivals

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

THRESHOLD = 6  # the evidence that declares a boundary
AGAINST = 2  # the evidence of a label inside the task, against a boundary
MIN_LABELS = 8  # the labels of a task before it can end
FRESH, SEEN = 1.0, -2.0  # log prior of being new, for classes not seen or seen before the boundary


class TaskDetector:
    """Detects from the labels of a stream when a task begins and which classes are new.

    Parameters
    ----------
    num_classes
        The number of classes, including those to come.

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
        self._recent = np.zeros(num_classes, dtype=np.int64)  # since the evidence was last 0
        self._before = np.zeros(num_classes, dtype=bool)  # seen before the boundary
        self._own = np.zeros(num_classes, dtype=bool)  # own classes when the evidence was last 0
        self._arrivals = Arrivals(num_classes)
        self._began_by_arrival = False

    def update(self, y: NDArray[np.integer[Any]]) -> tuple[bool, frozenset[int]]:
        """Update with the labels of a batch (−1: no label).

        Return whether a task begins with this batch, and the new classes of the current task.
        """
        came = np.bincount(y[y >= 0], minlength=self.num_classes)
        boundary = self._update_evidence(came)
        if came.any():
            self.new = frozenset(np.flatnonzero(self._is_new()).tolist())
        return boundary, self.new

    def resize(self, num_classes: int) -> None:
        """Change the number of classes; counts of the existing classes are kept."""
        self.num_classes = num_classes
        resize_arrays(self, num_classes)
        resize_arrays(self._arrivals, num_classes)

    def copy(self) -> TaskDetector:
        """Return an independent copy of the detector."""
        other = copy.copy(self)
        other._before = self._before.copy()  # the other arrays are never changed in place
        other._arrivals = copy.copy(self._arrivals)
        return other

    def _update_evidence(self, came: Counts) -> bool:
        """Update counts and evidence; return whether a task begins."""
        inside = int(came[self._own].sum())
        outside = int(came.sum()) - inside
        self.evidence = max(0, self.evidence + outside - AGAINST * inside)
        arrived = self._arrivals.update(came, self._counts, self._before, self._own)
        self._counts = self._counts + came
        self._recent = self._recent + came if self.evidence else np.zeros_like(came)
        boundary = self.number == 0 or (self.evidence >= THRESHOLD and self._is_known())
        if boundary:
            self._begin()
        elif arrived.any():
            self._begin_by_arrival(arrived)
            boundary = True
        if boundary or self.evidence >= THRESHOLD:  # a task with too few labels continues
            self.evidence = 0
            self._recent = np.zeros_like(came)
        if not self.evidence:
            everything = np.full(self.num_classes, FRESH)
            self._own = self._is_new() | split(self._counts, everything)
        return boundary

    def _is_known(self) -> bool:
        """Whether the labels before the recent ones are enough to know most classes of the task."""
        base = self._counts - self._recent
        return bool(base.sum() >= MIN_LABELS and 3 * np.sum(base == 1) <= base.sum())

    def _begin(self) -> None:
        """Begin a task with the recent labels, or at the first call with all labels."""
        if self.number:
            ended = self._counts > self._recent
            self._arrivals.begin(ended & ~self._before, self._own)
            self._before |= ended
            self._counts = self._recent
        self.number += 1
        self._began_by_arrival = False

    def _begin_by_arrival(self, arrived: Mask) -> None:
        """Begin a task with the labels since these classes began to arrive."""
        since = self._arrivals.since
        self._arrivals.begin((self._counts > 0) & ~self._before, self._own | arrived)
        self._before = (self._before | (self._counts > since)) & ~arrived
        self._counts = since
        self.number += 1
        self._began_by_arrival = True

    def _is_new(self) -> Mask:
        if self._began_by_arrival:
            fresh = np.where(self._before, 0, self._counts)
            return split(fresh, np.full(self.num_classes, FRESH))
        came = self._counts > 0
        if self.number > 1 and not (came & self._before).any():
            return came
        return split(self._counts, np.where(self._before, SEEN, FRESH))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next update depends on, for JSON."""
        state: dict[str, Any] = {
            "number": self.number,
            "evidence": self.evidence,
            "new": sorted(self.new),
            "counts": self._counts.tolist(),
            "recent": self._recent.tolist(),
            "before": self._before.tolist(),
            "own": self._own.tolist(),
        }
        if self._began_by_arrival or not self._arrivals.is_plain(self._counts):
            state["arrivals"] = self._arrivals.state_dict() | {"began": self._began_by_arrival}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, dtype in {"counts": int, "recent": int, "before": bool, "own": bool}.items():
            arrays[name] = np.array(state[name], dtype=dtype)
            if arrays[name].shape != (self.num_classes,):
                wanted = f"{self.num_classes}, one per class"
                raise ValueError(expected(f"number of {name}", arrays[name].size, wanted))
        self.number, self.evidence = int(state["number"]), int(state["evidence"])
        self.new = frozenset(state["new"])
        self._counts, self._recent = arrays["counts"], arrays["recent"]
        self._before, self._own = arrays["before"], arrays["own"]
        self._arrivals = Arrivals(self.num_classes)
        if arrivals := state.get("arrivals"):  # states of earlier versions have none
            self._arrivals.load_state_dict(arrivals)
        else:
            self._arrivals.start(self._counts)
        self._began_by_arrival = bool(arrivals and arrivals["began"])


def resize_arrays(holder: object, size: int) -> None:
    """Replace all arrays of an object by longer or shorter ones; further entries are 0."""
    for name, array in list(vars(holder).items()):
        if isinstance(array, np.ndarray):
            made = np.zeros(size, dtype=array.dtype)
            made[: len(array)] = array[:size]
            setattr(holder, name, made)


def split(counts: Counts, prior: NDArray[np.float64]) -> Mask:
    """Return the mask of a task's own classes, by the likelihood in the module description.

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
