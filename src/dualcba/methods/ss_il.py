"""SS-IL: separated softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.losses import Adapt, Batch, CrossEntropy, Term, mean_weights
from dualcba.memory import Balanced, Herding, Memory
from dualcba.methods.base import Context
from dualcba.methods.clser import frozen_copy
from dualcba.methods.exemplars import check_flags
from dualcba.methods.teacher import (
    Distillation,
    DistillationMethod,
    distillation,
    join,
    sum_of_means,
)


class SSIL(DistillationMethod):
    """Separate softmax functions for new and old classes, and distillation of each old task.

    L = CE(new and mem; over the new classes if the sample's class is new, else over the others)
        + weight · Σ_s KL_T(teacher ‖ network; over the classes of task s)

    L is the mean over the new batch plus the mean over the memory draw. The sum is over the earlier
    tasks s. The teacher is the network at the beginning of the task. The memory is class-balanced
    and also stores samples of the current task, whose softmax is over the new classes. The authors'
    code multiplies the distillation by T², which is `weight=4`. With the option `loss_mean`
    `"samples"`, L is one mean over the samples of both.

    A bias adaptor corrects the logits in the cross-entropy; the distillation uses raw logits. Of
    Dual-CBA only the class-specific part has an effect: the class-agnostic part makes the same
    correction for all new classes, and for all old classes, which changes neither of the separate
    softmax functions.

    Parameters
    ----------
    temperature, weight
        T and the weight of the distillation.
    released
        Whether to use the memory and the teacher of the code released with the conference paper on
        CBA: samples are stored when a task ends, so there are none of the current task, and the
        teacher is normalised by batch statistics.

    References
    ----------
    Ahn et al., SS-IL: separated softmax for incremental learning, 2021.
    """

    title = "SS-IL"
    closed_form = True  # the terms are the loss, up to rounding

    def __init__(
        self, *, temperature: float = 2.0, weight: float = 1.0, released: bool = False
    ) -> None:
        super().__init__()
        check_flags(released=released)
        self.temperature = temperature
        self.weight = weight
        self.released = released
        self.rereads_task, self.stores_in_steps = released, not released

    def bind(self, context: Context) -> None:
        """Create the teacher; if `released`, it has only batch statistics."""
        super().bind(context)
        if self.released:
            self.teacher.network = frozen_copy(context.network)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return a class-balanced memory, filled in steps or when a task ends."""
        return (Herding if self.released else Balanced)(size, shape, dtype)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Store samples of the task if `released`: the first ones, which are random."""
        if self.released:
            cast(Herding, self.context.memory).fill(x, y)

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the separated cross-entropy plus the distillation of each task."""
        all_ = join(new, mem)
        z = torch.cat([adapt(batch) for batch in (new, *mem)])
        z = z.masked_fill(~self.softmax_classes(all_.y), -torch.inf)
        separated = F.cross_entropy(z, all_.y, reduction="none")
        owner, earlier = self._tasks()
        target = torch.cat(self._targets([new, *mem]))
        distilled = distillation(all_.z, target, owner, earlier, self.temperature)
        each = separated + self.weight * distilled
        return each.mean() if self.sample_mean else sum_of_means(each, new, mem)

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the loss as terms, whose derivatives the outer step uses."""
        owner, earlier = self._tasks()
        terms: list[Term] = []
        batches = [new, *mem]
        weights = mean_weights(batches, by_samples=self.sample_mean)
        for batch, target, w in zip(batches, self._targets(batches), weights, strict=True):
            distilled = (owner, earlier, self.temperature, w * self.weight)
            terms += [
                CrossEntropy(batch, w, classes=self.softmax_classes(batch.y)),
                Distillation(batch, target, *distilled),
            ]
        return terms

    def _targets(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Return the teacher's logits of each batch, all in one pass."""
        if self.released:
            with torch.no_grad():
                return [z for z, _ in self.context.passes(self.teacher.network, batches)]
        x = torch.cat([batch.x for batch in batches])
        return list(torch.split(self.teacher(x)[0], [len(batch.y) for batch in batches]))

    @classmethod
    def wrappable(cls) -> bool:
        """True: `loss` is the sum of the terms, computed in one pass of the teacher."""
        return True

    def _tasks(self) -> tuple[Tensor, Tensor]:
        """Return the task that announced each class, and the mask of classes of earlier tasks."""
        owner = self.context.sets.owner
        return owner, (owner >= 0) & ~self.context.sets.new

    def softmax_classes(self, y: Tensor) -> Tensor:
        """Return the classes in each sample's softmax, a mask (n, C)."""
        sets = self.context.sets
        others = sets.seen.index_fill(0, y, True) & ~sets.new  # unannounced classes may appear
        return torch.where(sets.new[y].unsqueeze(1), sets.new, others)
