"""Incremental classifier and representation learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod
from dualcba.methods.teacher import join


class ICaRL(ExemplarMethod):
    """Sigmoid outputs that distil the old classes, exemplars, and the nearest class mean.

    L = Σ_c BCE(z_c, target_c), the mean over the new batch and the memory draw joined, over the
    classes seen so far; the target is the teacher's sigmoid for the classes that it knew (the
    network of the task's start), else whether c is the sample's class.

    A sample is of the class whose mean is nearest, features and means being normalised. The mean
    is that of the class's exemplars; a class that has none yet has the running mean of its
    features in training, in which a step counts `decay` times as much as the next one. Before
    any class has a mean the logits decide. The current task's samples are read again at its end,
    to choose the exemplars by herding.

    References
    ----------
    Rebuffi et al., iCaRL: incremental classifier and representation learning, 2017.
    """

    title = "iCaRL"
    one_per_class = True
    means: Tensor
    has_mean: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, *, decay: float = 0.9, rehearse: bool = True) -> None:
        super().__init__(rehearse=rehearse)
        self.decay = decay

    def bind(self, context: Context) -> None:
        """Copy the network, make room for the means."""
        super().bind(context)
        weight = cast(Tensor, context.network.head.weight).detach()
        self.register_buffer("sums", torch.zeros_like(weight))  # (C, d)
        self.register_buffer("counts", weight.new_zeros(len(weight)))
        self.register_buffer("means", torch.zeros_like(weight), persistent=False)
        self.register_buffer("has_mean", self.counts > 0, persistent=False)

    def begin_task(self) -> None:
        """Running means start anew."""
        super().begin_task()
        self.sums.zero_()
        self.counts.zero_()

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Binary cross-entropy to the labels and to the teacher."""
        self._follow(new)
        all_ = join(new, mem)
        seen = self.context.sets.seen.index_fill(0, all_.y, True)
        target = self.targets(all_.x, all_.y)
        bce = F.binary_cross_entropy_with_logits(all_.z, target, reduction="none")
        return (bce * seen).sum(1).mean()

    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """(n, C): the teacher's answer for the classes that it knew, the label for the rest."""
        old, _ = self.teacher(x)
        return torch.where(self.teacher.known, old.sigmoid(), self._onehot(y))

    @torch.no_grad()
    def _follow(self, new: Batch) -> None:
        of = self._onehot(new.y)
        self.sums.mul_(self.decay).addmm_(of.T, F.normalize(new.h))
        self.counts.mul_(self.decay).add_(of.sum(0))

    def before_scores(self) -> None:
        """Means of the exemplars by the network as it is now; running means for the rest."""
        self.context.run(("means", self.memory.filled), self._average)

    def _average(self) -> None:
        sums, has = self.sums, self.counts > 0
        if self.memory.filled:
            rows = slice(self.memory.filled)
            h = F.normalize(self.embed(self.memory.x[rows])[1])
            of = self._onehot(self.memory.y[rows])
            held = of.sum(0) > 0
            with torch.autocast(h.device.type, enabled=False):
                sums = torch.where(held.unsqueeze(1), of.T @ h, sums)
            has = has | held
        self.means.copy_(F.normalize(sums))
        self.has_mean.copy_(has)

    def scores(self, x: Tensor) -> Tensor:
        """Minus the squared distance to each class mean; −∞ where there is none."""
        z, h = self.context.network(x)
        with torch.autocast(h.device.type, enabled=False):
            near = 2 * (F.normalize(h) @ self.means.T) - 2
        near = near.masked_fill(~self.has_mean, -torch.inf)
        return torch.where(self.has_mean.any(), near, z)

    def _onehot(self, y: Tensor) -> Tensor:
        return F.one_hot(y, len(self.counts)).to(self.counts.dtype)
