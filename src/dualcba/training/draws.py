"""The random numbers of a step, drawn on the host before the step.

They are drawn as NumPy arrays, packed into one packet (`dualcba.engine.packet`) and unpacked on the
device into the same dataclasses with tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data import Transform
from dualcba.engine.packet import Array
from dualcba.methods import Context, Method, viewed
from dualcba.options import TrainingOptions
from dualcba.randomness import generator
from dualcba.training.loss_monitor import loss_slot

T = TypeVar("T", Array, Tensor)


@dataclass(frozen=True, slots=True)
class MemoryDraw(Generic[T]):
    """Samples drawn from the memory."""

    rows: T
    """(n,) the rows of the samples in the memory."""

    augment: T | None
    """(n, ...) parameters of the augmentation; None if the transform is not random."""

    views: dict[str, T] = field(default_factory=dict)
    """Parameters of the further views by name; empty if the draw has none (see `viewed`)."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class ChosenDraw(Generic[T]):
    """Samples that the method chooses from the memory and the new batch, see `Method.choose`."""

    u: T
    """(n,) uniform numbers in [0, 1)."""

    augment: T | None
    """(n, ...) parameters of the augmentation; None if the transform is not random."""

    views: dict[str, T] = field(default_factory=dict)
    """As in `MemoryDraw`."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.u)


@dataclass(frozen=True, slots=True)
class BalancedDraw(Generic[T]):
    """Samples drawn evenly over the classes of a `Pool`; their labels are on the device."""

    u: T
    """(n,) uniform numbers in ascending order, one in each of n equal parts of [0, 1]."""

    augment: T | None
    """(n, ...) parameters of the augmentation; None if the transform is not random."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.u)


@dataclass(frozen=True, slots=True)
class BatchDraws(Generic[T]):
    """The random numbers from which the batches of a step are made."""

    new_augment: T | None
    """Parameters of the augmentation of the new samples."""

    memory: tuple[MemoryDraw[T], ...] | tuple[ChosenDraw[T], ...]
    """The memory draws of the inner loss, `Method.draws` of them unless the memory is empty."""

    outer_batch: MemoryDraw[T] | BalancedDraw[T] | None
    """B_buf, the fresh draw of the outer step; None if there is none in this step."""

    views: dict[str, T]
    """Parameters of the further views of the new samples, by name."""

    filled: T | None = None
    """(1,) the number of samples in the memory; None if the step does not use it."""

    extra: MemoryDraw[T] | None = None
    """The draw for the method's `extra_step`; None if the method has no such step."""


@dataclass(frozen=True, slots=True)
class StepDraws(Generic[T]):
    """The random numbers of one step."""

    batches: BatchDraws[T]

    slots: T
    """(n,) the memory rows of the new samples; the spare row for samples that are not stored."""

    noise: T | None
    """The random numbers of the method's `noise`."""

    loss_slot: T
    """(1,) the index of this step's loss in the `LossMonitor`."""


def uses_pool(options: TrainingOptions) -> bool:
    """Return whether steps use the `Pool` of memory and current batch."""
    counted = options.outer_loss == "adjusted" or options.counts
    return options.outer_draw == "balanced" or bool(counted)


def draw_views(
    views: Mapping[str, Transform], rng: np.random.Generator, n: int
) -> dict[str, Array]:
    """Draw the parameters of all views of n samples."""
    return {name: view.draw(rng, n) for name, view in views.items()}


class StepSampler:
    """Named random generators of one seed, which draw the random numbers of each step.

    `balanced` says whether the outer batch is drawn evenly over classes, `pooled` whether the step
    uses the pool of memory and current batch.
    """

    def __init__(
        self,
        seed: int,
        context: Context,
        method: Method,
        views: Mapping[str, Transform],
        *,
        balanced: bool = False,
        pooled: bool = False,
    ) -> None:
        self.rng = {name: generator(seed, name) for name in ("memory", "augmentation", "method")}
        self.context = context
        self.method = method
        self.views = views
        random = context.transform.random or views or context.draw_transforms
        unused = {"method": type(method).noise is Method.noise, "augmentation": not random}
        self.used = [name for name in self.rng if not unused.get(name)]
        self.balanced = balanced
        self.pooled = pooled

    def draw(
        self, step: int, n: int, storable: NDArray[np.bool_] | None, *, outer_batch: bool = False
    ) -> StepDraws[Array]:
        """Draw the random numbers of a step with n new samples.

        `storable` is the mask of samples that may enter the memory, None for all; `outer_batch`
        says whether to draw B_buf.
        """
        batches = self._batches(n, outer_batch)
        slots = self._slots(n, storable)
        noise = self.method.noise(self.rng["method"], step)
        return StepDraws(batches, slots, noise, loss_slot(step))

    def _slots(self, n: int, storable: NDArray[np.bool_] | None) -> Array:
        memory, rng = self.context.memory, self.rng["memory"]
        if storable is None:
            slots = memory.slots(n, rng)
        else:
            slots = np.full(n, memory.size)
            slots[storable] = memory.slots(int(storable.sum()), rng)
        if memory.stale is not None:
            memory.stale[torch.from_numpy(slots)] = True
        return slots

    def _batches(self, n: int, outer_batch: bool) -> BatchDraws[Array]:
        new_augment = self._augment(n)
        memory = self._memory_draws() if self.context.memory.filled else ()
        fresh = self._outer_draw() if outer_batch else None
        views = draw_views(self.views, self.rng["augmentation"], n - self.method.labelled)
        filled = np.array([self.context.memory.filled]) if self.pooled else None
        extra = self._memory_draw() if self.method.extra_draw and memory else None
        return BatchDraws(new_augment, memory, fresh, views, filled, extra)

    def _memory_draws(self) -> tuple[MemoryDraw[Array], ...] | tuple[ChosenDraw[Array], ...]:
        method, chosen = self.method, self.method.chosen
        draws = range(len(chosen) if chosen else method.draws)
        seen = viewed(method, draws)
        if not chosen:
            return tuple([self._memory_draw(k, views=k in seen) for k in draws])
        return tuple([self._chosen_draw(k, chosen[k], views=k in seen) for k in draws])

    def _chosen_draw(self, draw: int, n: int, *, views: bool) -> ChosenDraw[Array]:
        u, augment = self.rng["memory"].random(n), self._augment(n, draw)
        drawn = draw_views(self.views, self.rng["augmentation"], n) if views else {}
        return ChosenDraw(u, augment, drawn)

    def _outer_draw(self) -> MemoryDraw[Array] | BalancedDraw[Array]:
        if not self.balanced:
            return self._memory_draw()
        n = self.context.draw_size
        u = (np.arange(n) + self.rng["memory"].random(n)) / n
        return BalancedDraw(u, self._augment(n))

    def _memory_draw(self, draw: int | None = None, *, views: bool = False) -> MemoryDraw[Array]:
        rows = self.context.memory.draw(self.context.draw_size, self.rng["memory"])
        augment = self._augment(len(rows), draw)
        if not views:
            return MemoryDraw(rows, augment)
        return MemoryDraw(
            rows, augment, draw_views(self.views, self.rng["augmentation"], len(rows))
        )

    def _augment(self, n: int, draw: int | None = None) -> Array | None:
        transform = self.context.transform_of(draw)
        return transform.draw(self.rng["augmentation"], n) if transform.random else None
