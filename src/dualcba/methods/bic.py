"""Bias correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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

    def begin_task(self) -> None:
        """Hold out as many new samples as exemplars."""
        super().begin_task()
        self.quota.fill_(len(self.memory.y[self.memory.validation]))
        self.arrived.zero_()

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
        held = self.is_held_out(torch.arange(len(y), device=y.device))
        rows = self.memory.validation
        val_x = torch.cat([self.memory.x[rows], x[held]])
        val_y = torch.cat([self.memory.y[rows], y[held]])
        if len(val_y) and bool(held.any()):
            self.fit(self.embed(val_x)[0], val_y)
        super().end_task(x, y)

    def scores(self, x: Tensor) -> Tensor:
        """Corrected logits."""
        return self.correct(self.context.network(x)[0])

    def fit(self, z: Tensor, y: Tensor) -> None:
        """α, β by which logits z are right about y; on the host, for the steps are tiny."""
        new = self.context.sets.new
        rest = self.correct(z).masked_fill(new, -torch.inf).logsumexp(1)  # of the other classes
        own, weight = F.one_hot(y, len(new))[:, new], 1 / torch.bincount(y)[y]
        arrays = [t.double().cpu().numpy() for t in (z[:, new], rest, own, weight)]
        parts = math.ceil(len(y) / self.context.batch_size)
        batches = [[a[k::parts] for a in arrays] for k in range(parts)]  # old and new in each
        free, mean, square = np.array([1.0, 0.0]), np.zeros(2), np.zeros(2)
        for t, (Z, R, Y, w) in enumerate(batches * self.epochs, start=1):
            q = free[0] * Z + free[1]
            total = np.logaddexp(R, np.logaddexp.reduce(q, 1))
            error = (np.exp(q - total[:, None]) - Y) * (w / w.sum())[:, None]
            slope = np.array([(error * Z).sum(), error.sum()])
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            step = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)  # Adam
            free -= self.fitting_lr * step
        self.alpha.masked_fill_(new, free[0])
        self.beta.masked_fill_(new, free[1])
