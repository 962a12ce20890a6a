"""IBN statistics, estimated from the whole memory or from parts of it.

Predictions may estimate them from parts (`ibn_refresh`); evaluation uses the whole memory. They are
cached until the next step and are never used in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualcba.methods.nearest_mean import RowFeatures
from dualcba.normalization.refresh import Due, MovingEstimate
from dualcba.normalization.statistics import RunningStatistics
from dualcba.options import IBNRefresh
from dualcba.prediction.memory_pass import MemoryPass
from dualcba.randomness import generator
from dualcba.training.parts import Parts
from dualcba.training.precision import default_modes


class MemoryStatistics:
    """The statistics of normalisation layers, estimated from the memory at most once per step.

    `average` and `augment` are those of `MemoryPass`. `rows` is a read-out's cache for the rows of
    the memory; rows from which an estimate is made are marked as out of date.
    """

    def __init__(
        self, parts: Parts, rows: RowFeatures | None, *, seed: int, average: str, augment: bool
    ) -> None:
        self.context = parts.context
        self.method = parts.method
        self.engine = parts.engine
        self.tasks = parts.tasks
        self.rows = rows
        self.seed = seed
        self.memory_pass = MemoryPass(parts, average=average, augment=augment)
        self.layers = self.memory_pass.layers
        self._estimated = RunningStatistics(self.layers)
        self._estimated_at = -1  # the step of the cached estimate
        self.moving = MovingEstimate(self.layers, None if rows is None else rows.tensors())
        self._followed_at = -1  # the step at which `moving` last got the weights
        self._matrices: list[Tensor] | None = None  # the result of `_weights`, before it is joined

    def exist(self, refresh: IBNRefresh) -> bool:
        """Whether there is something to estimate, and the memory has at least two samples."""
        followed = bool(self.layers) or (refresh == "parts" and self.rows is not None)
        return followed and self.context.memory.filled > 1

    def estimate(self, step: int) -> None:
        """Set the layers' statistics to the estimate from the whole memory."""
        if self._estimated_at == step or not self.layers:
            self._estimated.restore()
            return
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        self.memory_pass.over_all(generator(self.seed, "ibn", step))
        self._estimated.save()
        self._estimated_at = step

    def estimate_parts(self, step: int) -> None:
        """Update the moving estimate with the parts that are due, and set the layers to it."""
        moving, filled = self.moving, self.context.memory.filled
        task = (len(self.tasks.starts), self.tasks.open)
        if self._followed_at != step:
            moving.follow(self._weights())
            self._followed_at = step
        due = moving.due(filled, task)
        if due.whole:
            self.estimate(step)
            if self.rows is not None:  # first, in case Ctrl-C comes in between
                self.rows.stale.fill_(True)
            moving.keep(task)
            return
        moving.statistics.restore()
        if due.parts:
            self._add_parts(due, step)
            moving.advance(due)

    def _add_parts(self, due: Due, step: int) -> None:
        rng, filled = generator(self.seed, "ibn parts", step), self.context.memory.filled
        for _ in range(due.parts):
            rows = rng.choice(filled, due.size, replace=False)
            if self.rows is not None:
                self.rows.stale[torch.from_numpy(rows)] = True
            if self.layers:
                self.memory_pass.over_part(rows, rng)

    def _weights(self) -> Tensor:
        """Return the trained weights that the layers' inputs may depend on, as one vector.

        Vectors such as biases are left out: those of normalisation layers would hide the changes of
        matrices.
        """
        if self._matrices is None:
            networks = self.memory_pass.networks()
            heads = {id(p) for network in networks for p in network.head.parameters()}
            every = [p for network in networks for p in network.parameters()]
            trained = [p for p in every if p.dim() > 1 and p.requires_grad and id(p) not in heads]
            self._matrices = [p.detach() for p in trained]
        if not self._matrices:
            return torch.zeros(0, device=self.engine.device)
        return torch.cat([p.reshape(-1) for p in self._matrices])

    def forget(self) -> None:
        """Discard the cached estimate, because network or memory may have changed."""
        self._estimated_at = self._followed_at = -1

    def save(self) -> dict[str, Any] | None:
        """Return the moving estimate for a state; None if there is none."""
        if self.moving.known:
            self._follow()
        return self.moving.state_dict()

    def load(self, estimate: Mapping[str, Any] | None, step: int) -> None:
        """Load the estimate from the state of a learner at this step; None if it has none."""
        with self.engine.scope():
            self.moving.load_state_dict(estimate, step * self.context.batch_size)
        saved = {} if estimate is None else estimate["tensors"]
        own = () if self.rows is None else self.rows.tensors()
        if self.rows is not None and not all(f"estimate.{name}" in saved for name in own):
            self.rows.stale.fill_(True)
        if estimate is not None:
            self._follow()

    def _follow(self) -> None:
        """Pass the current weights to the estimate, so that a state needs no earlier weights."""
        modes = default_modes(self.engine.device)
        with modes, self.engine.scope(), torch.no_grad(), self.method.predicting():
            self.moving.follow(self._weights())
