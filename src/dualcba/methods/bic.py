"""Bias correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.engine.optimizers import Adam
from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod
from dualcba.methods.teacher import distillation, join, sum_of_means


class BiC(ExemplarMethod):
    """Distil, then learn from held-out samples by how much the newest classes are favoured.

    L = (1 − λ)·CE + λ·T²·KL_T(teacher ‖ network; over the classes the teacher knew)

    the mean over the new batch plus that over the memory draw, with λ = old / (old + new) classes,
    T = 2 and the network of the task's start as teacher. From the second task on, every tenth
    exemplar and as many of the task's samples (one in eight, until there are enough) take no part
    in L. When the task ends, α and β of its classes are fitted to them, q = α·z + β, by Adam at
    1e-3 for 250 epochs, each class weighing the same; they are 1 and 0 until then. Every
    logit, the teacher's too, is taken with the corrections of all tasks so far. The current
    task's samples are read again at its end, for this and to choose exemplars by herding.

    References
    ----------
    Wu et al., Large scale incremental learning, 2019.
    """

    title = "BiC"
    single_pass = True  # a second epoch would train on what the first held out
    held_out, one_in = 10, 8
    temperature, epochs, fitting_lr = 2.0, 250, 1e-3
    alpha: Tensor
    beta: Tensor
    quota: Tensor
    arrived: Tensor

    def bind(self, context: Context) -> None:
        """Copy the network; correct nothing yet."""
        super().bind(context)
        weight = cast(Tensor, context.network.head.weight).detach()
        self.register_buffer("alpha", weight.new_ones(len(weight)))
        self.register_buffer("beta", weight.new_zeros(len(weight)))
        for name in ("quota", "arrived"):
            self.register_buffer(name, weight.new_zeros((), dtype=torch.long))
        self.free = weight.new_zeros(2, dtype=torch.float64)  # α and β, while they are fitted
        cuda = weight.is_cuda
        self.adam = Adam([self.free], self.fitting_lr, fused=True, capturable=cuda)

    def begin_task(self) -> None:
        """Hold out as many new samples as exemplars."""
        super().begin_task()
        self.quota.fill_(self._quota())
        self.arrived.zero_()

    def _quota(self) -> int:
        return len(self.memory.y[self.memory.validation])

    def correct(self, z: Tensor) -> Tensor:
        """α·z + β, of each class its own."""
        return self.alpha * z + self.beta

    def is_held_out(self, place: Tensor) -> Tensor:
        """Whether the samples at these places in the task are for validation."""
        return (place % self.one_in == 0) & (place // self.one_in < self.quota)

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Cross-entropy and distillation, of what is not held out."""
        all_ = join(new, mem)
        z, target = self.correct(all_.z), self.correct(self.teacher(all_.x)[0])
        known, T = self.teacher.known, self.temperature
        share = known.sum() / (known | self.context.sets.new).sum()
        kd = T**2 * distillation(z, target, known, known, T)
        each = (1 - share) * F.cross_entropy(z, all_.y, reduction="none") + share * kd
        return sum_of_means(each * self._takes_part(new, len(each)), new, mem)

    def _takes_part(self, new: Batch, n: int) -> Tensor:
        """Weights of n samples, the new ones first: 0 for those held out, on average 1."""
        place = torch.arange(len(new.y), device=new.y.device)
        apart = self.is_held_out(self.arrived + place)
        self.arrived += len(place)
        weight = ~apart * (len(place) / (~apart).sum().clamp(min=1))
        return F.pad(weight, (0, n - len(place)), value=1.0)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Fit the correction of the newest classes, then choose exemplars."""
        held = slice(0, self._quota() * self.one_in, self.one_in)  # as `is_held_out` says
        rows = self.memory.validation
        if len(y[held]):
            val_x = torch.cat([self.memory.x[rows], x[held]])
            val_y = torch.cat([self.memory.y[rows], y[held]])
            self.fit(self.embed(val_x)[0], val_y)
        super().end_task(x, y)

    def scores(self, x: Tensor) -> Tensor:
        """Corrected logits."""
        return self.correct(self.context.network(x)[0])

    @torch.no_grad()
    def fit(self, z: Tensor, y: Tensor) -> None:
        """α, β by which logits z are right about y: q is α·z + β for the newest classes alone."""
        new, n = self.context.sets.new, len(y)
        parts = math.ceil(n / self.context.batch_size)
        rows = torch.arange(math.ceil(n / parts) * parts, device=y.device).view(-1, parts).T
        there, rows = rows < n, rows.clamp(max=n - 1)  # old and new in each of the parts
        of = F.one_hot(y, len(new)).double()
        weight = (of / of.sum(0).clamp(min=1)).sum(1)[rows] * there  # every class weighs the same
        weight = (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
        rest = self.correct(z).masked_fill(new, 0.0).double()[rows]
        slopes = torch.stack([z * new, new.expand_as(z)]).double()  # of q, by α and by β
        inputs = slopes[:, rows].transpose(0, 1).flatten(2), rest, of[rows], weight

        for value in self.adam.state.get(self.free, {}).values():
            value.zero_()
        self.free[0], self.free[1] = 1.0, 0.0
        for _ in range(self.epochs):
            self.context.run(("fit", n), self._fit, *inputs)
        for live, value in zip((self.alpha, self.beta), self.free, strict=True):
            live.copy_(torch.where(new, value.to(live.dtype), live))

    def _fit(self, slopes: Tensor, rest: Tensor, of: Tensor, weight: Tensor) -> None:
        """One epoch, part by part: (2, n·C), (n, C), (n, C) and (n, 1) each."""
        for slope, fixed, own, w in zip(slopes, rest, of, weight, strict=True):
            q = fixed + (self.free @ slope).view_as(fixed)
            self.free.grad = slope @ ((q.softmax(1) - own) * w).flatten()
            self.adam.step()
