"""BiC: bias correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.engine.optimizers import Adam
from dualcba.errors import expected
from dualcba.losses import Adapt, Batch
from dualcba.memory import Exemplars, Indices, TaskShares
from dualcba.memory.shares import task_counter
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod, check_flags
from dualcba.methods.scorers import Corrected
from dualcba.methods.teacher import distillation, join, sum_of_means
from dualcba.options.definition import check_choice


class BiC(ExemplarMethod):
    """Distillation, and a linear correction of the new logits, fitted to held-out samples.

    L = (1 − λ)·CE + λ·T²·KL_T(teacher ‖ network; over the classes that the teacher knows)

    L is the mean over the new batch plus the mean over the memory draw, with T = 2 and λ = old /
    (old + new) classes. The teacher is the network at the beginning of the task.

    From the second task on, some samples are held out from L: every tenth exemplar, and the same
    number of samples of the task (one in eight, until there are enough). When the task ends, the
    correction q = α·z + β of its classes is fitted to the held-out samples by Adam with a learning
    rate of 1e-3 for 250 epochs; all classes have the same weight. Until then, α = 1 and β = 0. All
    logits, including those of the teacher, are corrected for all tasks so far. When a task ends,
    its samples are read again, for this fit and to select exemplars by herding.

    Parameters
    ----------
    ratio
        λ: `"classes"` as above, or `"tasks"` for 1 / (t + 1), where t is the number of earlier
        tasks. In the first task λ is 0.
    balanced
        Whether all classes have the same weight in the fit of the correction; else all samples.
    rehearse, merge, negatives
        See `ExemplarMethod`.
    released
        Whether to use the correction and the memory of the code released with the conference paper
        on CBA. There the correction of a task is reset when the next task begins: logits in steps
        are not corrected, and predictions only for the newest classes. The softmax is over the
        classes seen so far. The memory has equal shares for all tasks, drawn at random from all
        their data (`TaskShares`).

    References
    ----------
    Wu et al., Large scale incremental learning, 2019.
    """

    title = "BiC"
    single_pass = True  # a second epoch would train on held-out samples
    held_out, one_in = 10, 8  # one in ten exemplars, one in eight new samples
    temperature, epochs, fitting_lr = 2.0, 250, 1e-3
    alpha: Tensor
    beta: Tensor
    teacher_alpha: Tensor
    teacher_beta: Tensor
    quota: Tensor
    arrived: Tensor

    def __init__(
        self,
        *,
        ratio: str = "classes",
        balanced: bool = True,
        rehearse: bool = True,
        merge: bool = False,
        negatives: bool = False,
        released: bool = False,
    ) -> None:
        super().__init__(rehearse=rehearse, merge=merge, negatives=negatives)
        check_choice("ratio", ratio, ("classes", "tasks"))
        check_flags(balanced=balanced, released=released)
        if released and not merge:
            raise ValueError(expected("released", released, "False, or merge=True"))
        self.ratio, self.balanced, self.released = ratio, balanced, released

    def bind(self, context: Context) -> None:
        """Create the teacher, and α = 1, β = 0."""
        super().bind(context)
        weight = cast(Tensor, context.network.head.weight).detach()
        self.register_buffer("alpha", weight.new_ones(len(weight)))
        self.register_buffer("beta", weight.new_zeros(len(weight)))
        if self.released:
            for name in ("alpha", "beta"):
                self.register_buffer(f"teacher_{name}", getattr(self, name).clone())
        for name in ("quota", "arrived"):
            self.register_buffer(name, weight.new_zeros((), dtype=torch.long))
        self.fitted = weight.new_zeros(2, dtype=torch.float64)  # α and β during the fit
        cuda = weight.is_cuda
        self.adam = Adam([self.fitted], self.fitting_lr, fused=True, capturable=cuda)

    def begin_task(self) -> None:
        """Copy the network into the teacher, and set the number of samples to hold out."""
        super().begin_task()
        if self.released:
            self.teacher_alpha.copy_(self.alpha)
            self.teacher_beta.copy_(self.beta)
            self.alpha.fill_(1.0)
            self.beta.zero_()
        self.quota.fill_(self._quota())
        self.arrived.zero_()

    def _quota(self) -> int:
        return len(self.memory.y[self.memory.validation])

    def make_memory(
        self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int
    ) -> Exemplars:
        """Return a memory with equal shares for classes, or for tasks if `released`."""
        if not self.released:
            return super().make_memory(size, shape, dtype, C)
        return TaskShares(size, shape, dtype, held_out=self.held_out)

    def exemplar_counter(self, size: int, C: int) -> Callable[[Indices], int]:
        """Return a function that counts the exemplars in the memory after each task."""
        own = task_counter(size, self.held_out)
        return own if self.released else super().exemplar_counter(size, C)

    def correct(self, z: Tensor) -> Tensor:
        """Return α·z + β, with α and β of each class."""
        return self.alpha * z + self.beta

    def _targets(self, x: Tensor) -> Tensor:
        """Return the corrected logits of the teacher."""
        z, _ = self.teacher(x)
        return self.teacher_alpha * z + self.teacher_beta if self.released else self.correct(z)

    def is_held_out(self, index: Tensor) -> Tensor:
        """Return whether the samples at these positions in the task are held out."""
        return (index % self.one_in == 0) & (index // self.one_in < self.quota)

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return cross-entropy and distillation of the samples that are not held out."""
        all_ = join(new, mem)
        z, target = self.correct(all_.z), self._targets(all_.x)
        known, T = self.teacher.known, self.temperature
        ratio = self._ratio()
        kd = T**2 * distillation(z, target, known, known, T)
        z = z.masked_fill(~self._softmax_classes(all_.y), -torch.inf)
        each = (1 - ratio) * F.cross_entropy(z, all_.y, reduction="none") + ratio * kd
        return sum_of_means(each * self._weights(new, len(each)), new, mem)

    def _softmax_classes(self, y: Tensor) -> Tensor:
        """Return the mask (C,) of the softmax: all classes, or those seen so far or in y."""
        seen = self.context.sets.seen
        return seen.index_fill(0, y, True) if self.released else torch.ones_like(seen)

    def _ratio(self) -> Tensor:
        """Return λ, a scalar."""
        known, sets = self.teacher.known, self.context.sets
        if self.ratio == "tasks":
            return sets.later / (sets.owner.max() + 1)  # `later` is 0 in the first task
        return known.sum() / (known | sets.new).sum()

    def _weights(self, new: Batch, n: int) -> Tensor:
        """Return weights of n samples, the new ones first: 0 if held out, with mean 1."""
        own = self._of_the_task(new.y)
        index = self.arrived + own.cumsum(0) - 1
        used = ~(self.is_held_out(index) & own)
        self.arrived += own.sum()
        weight = used * (len(index) / used.sum().clamp(min=1))
        return F.pad(weight, (0, n - len(index)), value=1.0)

    def _of_the_task(self, y: Tensor) -> Tensor:
        """Return the mask (n,) of samples that may be held out: with `merge`, only new classes."""
        return ~self.teacher.known[y] if self.merge else torch.ones_like(y, dtype=torch.bool)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Fit the correction of the new classes, then select exemplars."""
        held = slice(0, self._quota() * self.one_in, self.one_in)  # the samples of `is_held_out`
        rows = self.memory.validation
        own = self._of_the_task(y).nonzero().squeeze(1)[held] if self.merge else held
        if len(y[own]):
            val_x = torch.cat([self.mixed(self.memory.x[rows]), x[own]])
            val_y = torch.cat([self.memory.y[rows], y[own]])
            self.fit(self.embed(val_x)[0], val_y)
        if isinstance(self.memory, TaskShares):
            self.memory.share(x, y, self.mixed)
        else:
            super().end_task(x, y)

    def scores(self, x: Tensor) -> Tensor:
        """Return corrected logits."""
        return self.correct(self.context.network(x)[0])

    def scorer(self) -> nn.Module:
        """Return a module of corrected logits."""
        return Corrected(super().scorer(), self.alpha, self.beta)

    @torch.no_grad()
    def fit(self, z: Tensor, y: Tensor) -> None:
        """Fit α and β of the new classes to logits z and labels y; other classes are unchanged."""
        new, n = self.context.sets.new, len(y)
        parts = math.ceil(n / self.context.batch_size)
        rows = torch.arange(math.ceil(n / parts) * parts, device=y.device).view(-1, parts).T
        valid, rows = rows < n, rows.clamp(max=n - 1)  # each part has old and new classes
        onehot = F.one_hot(y, len(new)).double()
        per_class = onehot.sum(0).clamp(min=1) if self.balanced else 1.0
        weight = (onehot / per_class).sum(1)[rows] * valid
        weight = (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
        rest = self.correct(z).masked_fill(new, 0.0)
        rest = rest.masked_fill(~self._softmax_classes(y), -torch.inf).double()[rows]
        slopes = torch.stack([z * new, new.expand_as(z)]).double()  # ∂q/∂α and ∂q/∂β
        inputs = slopes[:, rows].transpose(0, 1).flatten(2), rest, onehot[rows], weight

        for value in self.adam.state.get(self.fitted, {}).values():
            value.zero_()
        self.fitted[0], self.fitted[1] = 1.0, 0.0
        for _ in range(self.epochs):
            self.context.run(("fit", n), self._fit_epoch, *inputs)
        for live, value in zip((self.alpha, self.beta), self.fitted, strict=True):
            live.copy_(torch.where(new, value.to(live.dtype), live))

    def _fit_epoch(self, slopes: Tensor, rest: Tensor, onehot: Tensor, weight: Tensor) -> None:
        """Fit for one epoch, part by part.

        In each part: slopes (2, n·C), rest (n, C), onehot (n, C), weight (n, 1).
        """
        for slope, fixed, target, w in zip(slopes, rest, onehot, weight, strict=True):
            q = fixed + (self.fitted @ slope).view_as(fixed)
            self.fitted.grad = slope @ ((q.softmax(1) - target) * w).flatten()
            self.adam.step()
