"""Learning a unified classifier incrementally via rebalancing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod
from dualcba.methods.teacher import join, sum_of_means


class CosineHead(nn.Module):
    """Logits are a learnt scale times the cosine between features and class weights."""

    samplewise = True

    def __init__(self, weight: Tensor, scale: float) -> None:
        super().__init__()
        self.bias = None
        self.weight = nn.Parameter(weight.detach().clone())
        self.scale = nn.Parameter(weight.new_tensor(scale))

    def cosine(self, h: Tensor) -> Tensor:
        """Features (n, d) → cosines (n, C), not in bfloat16: they lie close to each other."""
        with torch.autocast(h.device.type, enabled=False):
            return F.linear(F.normalize(h.to(self.weight.dtype)), F.normalize(self.weight))

    def forward(self, h: Tensor) -> Tensor:
        """Features (n, d) → logits (n, C)."""
        return self.scale * self.cosine(h)


class LUCIR(ExemplarMethod):
    """A cosine classifier, features that stay near the old ones, and room between old and new.

    L = CE + 5·√t · (1 − cos(h, teacher's h)) + ½ Σ_{k=1,2} max(0, ½ − cos(h, w_y) + cos(h, w_k))

    with t the number of earlier tasks and the network of the task's start as teacher. The first
    two terms are the mean over the new batch plus that over the memory draw, the last the mean over
    samples of classes the teacher knew; w_k are the nearest two new classes. From the second task
    on, a class's weight is imprinted (set to the mean normalised feature of the batch that first
    brings it, at the mean length of the old weights) and at a task's end the head alone is tuned on
    the exemplars' features, 20 epochs at lr 0.01. A task is read again at its end, to herd.

    References
    ----------
    Hou et al., Learning a unified classifier incrementally via rebalancing, 2019.
    """

    title = "LUCIR"
    nearest, margin, epochs, tuning_lr = 2, 0.5, 20, 0.01
    strength: Tensor
    met: Tensor

    def __init__(
        self, *, distillation: float = 5.0, scale: float = 1.0, rehearse: bool = True
    ) -> None:
        super().__init__(rehearse=rehearse)
        self.distillation, self.scale = distillation, scale

    def bind(self, context: Context) -> None:
        """Put the cosine classifier in place of the linear one."""
        weight = cast(Tensor, context.network.head.weight)
        context.network.replace_head(CosineHead(weight, self.scale))
        super().bind(context)
        self.register_buffer("strength", weight.new_zeros(()))
        self.register_buffer("met", torch.zeros_like(self.teacher.known))

    @property
    def head(self) -> CosineHead:
        """The classifier."""
        return cast(CosineHead, self.context.network.head)

    def begin_task(self) -> None:
        """The more tasks, the stronger the features are held."""
        super().begin_task()
        self.strength.fill_(self.distillation * math.sqrt(self.context.sets.task))

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Cross-entropy, distillation of features, margin ranking."""
        self._latest = new.h.detach(), new.y
        all_ = join(new, mem)
        drift = 1 - F.cosine_similarity(all_.h, self.teacher(all_.x)[1])
        each = F.cross_entropy(all_.z, all_.y, reduction="none") + self.strength * drift
        return sum_of_means(each, new, mem) + self.ranking(all_.h, all_.y)

    def ranking(self, h: Tensor, y: Tensor) -> Tensor:
        """How far old samples are from beating the nearest new classes by the margin."""
        cosine = self.head.cosine(h)
        own = cosine.gather(1, y.unsqueeze(1))
        rival = cosine.masked_fill(~self.context.sets.new, -torch.inf).topk(self.nearest).values
        old = self.teacher.known[y]
        return (F.relu(self.margin - own + rival).mean(1) * old).sum() / old.sum().clamp(min=1)

    def after_step(self, noise: Tensor | None) -> None:
        """Imprint the classes that came for the first time."""
        (h, y), weight, known = self._latest, self.head.weight, self.teacher.known
        of = F.one_hot(y, len(weight)).to(h.dtype)
        came = of.sum(0) > 0
        length = (weight.norm(dim=1) * known).sum() / known.sum().clamp(min=1)
        imprint = F.normalize(of.T @ F.normalize(h)) * length
        fresh = came & ~self.met & (self.context.sets.later > 0)
        weight.copy_(torch.where(fresh.unsqueeze(1), imprint, weight))
        self.met.logical_or_(came)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Choose exemplars; then train the classifier alone on their features."""
        super().end_task(x, y)
        x, y = self.memory.x[: self.memory.filled], self.memory.y[: self.memory.filled]
        if self.context.sets.task == 0 or not len(y):
            return
        h = self.embed(x)[1]
        for _ in range(self.epochs):
            self.context.run(("tune", len(y)), self._tune, h, y)

    def _tune(self, h: Tensor, y: Tensor) -> None:
        """One epoch of the classifier."""
        parameters = list(self.head.parameters())
        parts = math.ceil(len(y) / self.context.batch_size)
        for k in range(parts):  # y is sorted, so the parts are alike
            loss = F.cross_entropy(self.head(h[k::parts]), y[k::parts])
            grads = torch.autograd.grad(loss, parameters)  # .grad is the learner's own
            torch._foreach_add_([p.detach() for p in parameters], grads, alpha=-self.tuning_lr)
