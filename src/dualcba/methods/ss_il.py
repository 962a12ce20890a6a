"""Separated softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.losses import Adapt, Batch
from dualcba.memory import Balanced
from dualcba.methods.base import Context, Method
from dualcba.methods.teacher import Teacher, distillation, join, sum_of_means


class SSIL(Method):
    """New and old classes never compete in one softmax; each old task is distilled on its own.

    L = CE(new and mem; each sample over the new classes if its own is new, else over the others)
        + weight · Σ_s KL_T(teacher ‖ network; over the classes of task s)

    the mean over the new batch plus that over the memory draw, with s over the earlier tasks and
    the network of the task's start as teacher. The memory is class-balanced and, as the stream
    goes by, takes in samples of the current task too: their softmax is over the new classes. The
    authors' code multiplies the distillation by T²: that is `weight=4`.

    References
    ----------
    Ahn et al., SS-IL: separated softmax for incremental learning, 2021.
    """

    title = "SS-IL"
    adaptable = False

    def __init__(self, *, temperature: float = 2.0, weight: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.weight = weight

    def make_memory(
        self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int
    ) -> Balanced:
        """Class-balanced."""
        return Balanced(size, shape, dtype)

    def bind(self, context: Context) -> None:
        """Copy the network."""
        super().bind(context)
        self.teacher = Teacher(context)

    def begin_task(self) -> None:
        """The teacher is the network as it is now."""
        self.teacher.refresh()

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Separated cross-entropy and task-wise distillation."""
        all_ = join(new, mem)
        z = all_.z.masked_fill(~self.side(all_.y), -torch.inf)
        separated = F.cross_entropy(z, all_.y, reduction="none")
        owner = self.context.sets.owner  # (C,) the task that announced a class
        earlier = (owner >= 0) & ~self.context.sets.new
        target, _ = self.teacher(all_.x)
        distilled = distillation(all_.z, target, owner, earlier, self.temperature)
        return sum_of_means(separated + self.weight * distilled, new, mem)

    def side(self, y: Tensor) -> Tensor:
        """(n, C): the classes that each sample's softmax is over."""
        sets = self.context.sets
        others = sets.seen.index_fill(0, y, True) & ~sets.new  # a class may come unannounced
        return torch.where(sets.new[y].unsqueeze(1), sets.new, others)
