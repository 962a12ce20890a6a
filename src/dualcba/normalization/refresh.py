"""Decide how predictions re-estimate IBN statistics: from the whole memory, or from parts of it.

A pass over the whole memory after each step costs far more than the step. So at most one sample of
the memory is passed through the network for each observed sample: the estimate is a moving average
over parts of the memory, each estimated with the weights at that time. The whole memory is used if
as many samples have been observed as it stores, or if the weights have changed too much for an
average over the past, as after a step with a batch of two samples. The estimate is then exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.linalg import vector_norm

from dualcba.engine.torch_private import BatchNormBase
from dualcba.normalization.statistics import RunningStatistics

PART = 32
"""The maximum number of samples in a part."""

FRACTION = 4
"""A part is at most 1/`FRACTION` of the memory."""

WEIGHT = 0.25
"""The weight of a part in the moving average."""


LIMIT = 0.06
"""The largest accepted distance of the weights from those of the estimate, relative to their norm.

The distance is estimated from the squared lengths of the steps since each part, as if all steps
were orthogonal, with the weight of the part. At usual learning rates a step changes the weights by
less than 0.02, a step with a batch of two samples by up to 0.3.
"""

Task = tuple[int, bool]
"""Identifies a task: the number of tasks that have begun, and whether one is open."""


@dataclass(frozen=True)
class Due:
    """What to add to an estimate before its use: the whole memory, or `parts` of `size` samples."""

    whole: bool = False
    parts: int = 0
    size: int = 0


class MovingEstimate:
    """The statistics that predictions use between two passes over the whole memory.

    >>> estimate = MovingEstimate([])
    >>> estimate.due(1000, (1, True)).whole
    True
    >>> estimate.keep((1, True))
    >>> estimate.observe(70)
    >>> estimate.due(1000, (1, True)).parts
    2
    >>> estimate.due(70, (1, True)).whole, estimate.due(1000, (2, True)).whole
    (True, True)
    """

    def __init__(
        self, layers: Sequence[BatchNormBase], others: Mapping[str, Tensor] | None = None
    ) -> None:
        self.statistics = RunningStatistics(layers)
        self.others = dict(others or {})  # tensors that are saved with the estimate
        self._since = 0  # samples observed since the last part
        self._task: Task | None = None  # None: there is no estimate
        self._moved = 0.0  # squared distance of the weights from those of the estimate
        self._weights: Tensor | None = None  # the weights at the last call of `follow`

    @property
    def known(self) -> bool:
        """Whether there is an estimate."""
        return self._task is not None

    def forget(self) -> None:
        """Discard the estimate; the next one is made from the whole memory."""
        self._task = None

    def observe(self, samples: int) -> None:
        """Count the observed samples."""
        self._since += samples

    def due(self, filled: int, task: Task) -> Due:
        """Return what to add to the estimate, given the number of `filled` rows of the memory.

        In a new task this is the whole memory, because methods may change the whole network and
        memory at task boundaries.
        """
        known = self._task is not None and task == self._task and self._moved <= LIMIT**2
        if not known or self._since >= filled:
            return Due(whole=True)
        size = max(2, min(PART, filled // FRACTION))
        return Due(parts=self._since // size, size=size)

    def follow(self, weights: Tensor) -> None:
        """Add up how far the weights, given as one vector, have moved since the last call."""
        if self._weights is not None and self._task is not None and len(weights):
            change, norm = vector_norm(weights - self._weights), vector_norm(weights)
            self._moved += float(change / norm.clamp(min=1e-12)) ** 2
        self._weights = weights

    def keep(self, task: Task) -> None:
        """Save the layers' current statistics as the estimate."""
        self.statistics.save()
        self._since, self._task, self._moved = 0, task, 0.0

    def advance(self, due: Due) -> None:
        """Save the layers' current statistics as the estimate, after these parts were added."""
        self.statistics.save()
        self._since -= due.parts * due.size
        self._moved *= (1.0 - WEIGHT) ** due.parts

    def state_dict(self) -> dict[str, Any] | None:
        """Return a copy of the estimate, on the host; None if there is none."""
        if self._task is None:
            return None
        tensors = {name: t.cpu().clone() for name, t in self.tensors().items()}
        counts = {"since": self._since, "task": list(self._task), "moved": self._moved}
        return {"tensors": tensors, **counts}

    def load_state_dict(self, state: Mapping[str, Any] | None, observed: int) -> None:
        """Restore the checked result of `state_dict`.

        States of earlier versions have the number of samples `observed` before the last part,
        counted as steps times the batch size; the argument is the current number.
        """
        if state is None:
            self.forget()
            return
        self._weights = None
        for name, t in self.tensors().items():
            if name in state["tensors"]:  # those of `others` may be missing
                t.copy_(state["tensors"][name])
        since = state["since"] if "since" in state else max(0, observed - state["observed"])
        self._since, (tasks, is_open) = since, state["task"]
        self._task, self._moved = (tasks, is_open), state["moved"]

    def tensors(self) -> dict[str, Tensor]:
        """Return the means and variances by name, and the other tensors."""
        both = self.statistics.saved[0]
        found = {f"estimate.{i // 2}.{('mean', 'var')[i % 2]}": t for i, t in enumerate(both)}
        return found | {f"estimate.{name}": t for name, t in self.others.items()}
