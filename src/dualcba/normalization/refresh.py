"""When predictions re-estimate the statistics of IBN: from the whole memory, or from a part of it.

A pass over the memory after each step costs far more than the step. Here a sample of the memory
passes the network for each observed sample, at most: the estimate is a moving average over parts
of the memory, each estimated with the weights of its time. Where as many samples have been observed
as the memory holds, the whole memory is within that budget, and the estimate is exact. It is exact
too where the weights have changed too much for an average over the past, as after a step with a
batch of two samples.
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
"""Samples of a part, at most."""

FRACTION = 4
"""A part is this fraction of the memory, at most."""

WEIGHT = 0.25
"""The weight of a part in the moving average."""


LIMIT = 0.06
"""How far the weights may be from those that the estimate was made with, relative to their norm.

The squares of the steps since a part add up, as if no step went on in the direction of another, and
count with the weight of the part. At usual learning rates a step moves the weights by less than
0.02, one with a batch of two samples by up to 0.3.
"""

Task = tuple[int, bool]
"""What differs from task to task: the number of tasks that have begun, and whether one is open."""


@dataclass(frozen=True)
class Due:
    """What an estimate needs before it is used: all of the memory, or `parts` of `size` samples."""

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
        self.others = dict(others or {})  # what is saved with it
        self._since = 0  # samples observed since the last part
        self._task: Task | None = None  # None: there is no estimate
        self._moved = 0.0  # squared distance of the weights from those of the estimate
        self._weights: Tensor | None = None  # those that it was compared with last

    @property
    def known(self) -> bool:
        """Whether there is an estimate."""
        return self._task is not None

    def forget(self) -> None:
        """Discard the estimate; the next one is made from the whole memory."""
        self._task = None

    def observe(self, samples: int) -> None:
        """Count samples that were learnt."""
        self._since += samples

    def due(self, filled: int, task: Task) -> Due:
        """Return what the estimate needs, given the number of `filled` rows of the memory.

        In another task it is the whole memory: at the boundaries of tasks, methods may change the
        network and the memory as a whole.
        """
        known = self._task is not None and task == self._task and self._moved <= LIMIT**2
        if not known or self._since >= filled:
            return Due(whole=True)
        size = max(2, min(PART, filled // FRACTION))
        return Due(parts=self._since // size, size=size)

    def follow(self, weights: Tensor) -> None:
        """Note how far the weights, as one vector, have moved since the last call."""
        if self._weights is not None and self._task is not None and len(weights):
            change, norm = vector_norm(weights - self._weights), vector_norm(weights)
            self._moved += float(change / norm.clamp(min=1e-12)) ** 2
        self._weights = weights

    def keep(self, task: Task) -> None:
        """Keep the layers' present statistics as the estimate."""
        self.statistics.save()
        self._since, self._task, self._moved = 0, task, 0.0

    def advance(self, due: Due) -> None:
        """Keep the layers' present statistics as the estimate, to which these parts were added."""
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
        """Restore what `state_dict` returned, checked.

        States of earlier versions have the `observed` samples up to the last part, counted as
        steps times the batch size; the argument is that number now.
        """
        if state is None:
            self.forget()
            return
        self._weights = None
        for name, t in self.tensors().items():
            if name in state["tensors"]:  # others may be missing
                t.copy_(state["tensors"][name])
        since = state["since"] if "since" in state else max(0, observed - state["observed"])
        self._since, (tasks, is_open) = since, state["task"]
        self._task, self._moved = (tasks, is_open), state["moved"]

    def tensors(self) -> dict[str, Tensor]:
        """Return the means and variances by name, and the other tensors."""
        both = self.statistics.saved[0]
        found = {f"estimate.{i // 2}.{('mean', 'var')[i % 2]}": t for i, t in enumerate(both)}
        return found | {f"estimate.{name}": t for name, t in self.others.items()}
