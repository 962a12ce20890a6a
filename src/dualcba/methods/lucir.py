"""LUCIR: learning a unified classifier incrementally via rebalancing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.engine.host_to_device import to_device
from dualcba.engine.torch_private import foreach_add_
from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod, check_flags
from dualcba.methods.teacher import join, sum_of_means
from dualcba.nets.heads import CosineHead


class LUCIR(ExemplarMethod):
    """A cosine classifier with feature distillation and a margin between old and new classes.

    L = CE + 5·√t · (1 − cos(h, teacher's h)) + ½ Σ_{k=1,2} max(0, ½ − cos(h, w_y) + cos(h, w_k))

    where t is the number of earlier tasks and the teacher is the network at the beginning of the
    task. The first two terms are the mean over the new batch plus the mean over the memory draw.
    The last term is the mean over samples of the classes that the teacher knows; w_k are the
    weights of the two nearest new classes.

    From the second task on, the weight of a class is imprinted with the first batch that contains
    the class: it is set to the mean normalised feature, with the mean norm of the old weights. When
    a task ends, the head alone is trained on the features of the exemplars for 20 epochs with a
    learning rate of 0.01. The samples of a task are read again when it ends, to select exemplars by
    herding.

    Parameters
    ----------
    distillation, scale
        The weight of the distillation, 5 above, and the initial scale of the cosines.
    frozen
        Whether the weights of old classes are constants, in a task and in the training at its end.
        Then that training changes the weights of the newest classes alone, and not the scale.
    drop
        The number of batches after which the learning rate of that training falls to a tenth;
        0 for never.
    rehearse, merge
        See `ExemplarMethod`.

    References
    ----------
    Hou et al., Learning a unified classifier incrementally via rebalancing, 2019.
    """

    title = "LUCIR"
    own_head = True
    nearest, margin, epochs, tuning_lr = 2, 0.5, 20, 0.01
    strength: Tensor
    met: Tensor

    def __init__(
        self,
        *,
        distillation: float = 5.0,
        scale: float = 1.0,
        frozen: bool = False,
        drop: int = 0,
        rehearse: bool = True,
        merge: bool = False,
    ) -> None:
        super().__init__(rehearse=rehearse, merge=merge)
        check_flags(frozen=frozen)
        self.distillation, self.scale = distillation, scale
        self.frozen, self.drop = frozen, drop

    def bind(self, context: Context) -> None:
        """Replace the linear classifier by a cosine classifier."""
        weight = cast(Tensor, context.network.head.weight)
        context.network.replace_head(CosineHead(weight, self.scale))
        super().bind(context)
        self.register_buffer("strength", weight.new_zeros(()))
        self.register_buffer("met", torch.zeros_like(self.teacher.known))

    @property
    def head(self) -> CosineHead:
        """The cosine classifier."""
        return cast(CosineHead, self.context.network.head)

    def begin_task(self) -> None:
        """Copy the network into the teacher, and set the weight of the distillation."""
        super().begin_task()
        self.strength.fill_(self.distillation * math.sqrt(self.context.sets.task))

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return cross-entropy, feature distillation and margin ranking."""
        self._latest = new.h.detach(), new.y
        all_ = join(new, mem)
        drift = 1 - F.cosine_similarity(all_.h, self.teacher(all_.x)[1])
        z = self.head.scale * self._cosine(all_.h) if self.frozen else all_.z
        each = F.cross_entropy(z, all_.y, reduction="none") + self.strength * drift
        return sum_of_means(each, new, mem) + self.ranking(all_.h, all_.y)

    def ranking(self, h: Tensor, y: Tensor) -> Tensor:
        """Return the mean margin loss of old samples against the nearest new classes."""
        cosine = self._cosine(h)
        own = cosine.gather(1, y.unsqueeze(1))
        rival = cosine.masked_fill(~self.context.sets.new, -torch.inf).topk(self.nearest).values
        old = self.teacher.known[y]
        return (F.relu(self.margin - own + rival).mean(1) * old).sum() / old.sum().clamp(min=1)

    def _cosine(self, h: Tensor) -> Tensor:
        return self.head.cosine(h, self.teacher.known if self.frozen else None)

    def after_step(self, noise: Tensor | None) -> None:
        """Imprint the weights of classes that appear for the first time."""
        (h, y), weight, known = self._latest, self.head.weight, self.teacher.known
        member = F.one_hot(y, len(weight)).to(h.dtype)
        present = member.sum(0) > 0
        length = (weight.norm(dim=1) * known).sum() / known.sum().clamp(min=1)
        imprint = F.normalize(member.T @ F.normalize(h)) * length
        present &= self.context.good
        first = present & ~self.met & (self.context.sets.later > 0)
        weight.copy_(torch.where(first.unsqueeze(1), imprint, weight))
        self.met.logical_or_(present)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Select exemplars, then train the classifier alone on their features."""
        super().end_task(x, y)
        x, y = self.memory.x[: self.memory.filled], self.memory.y[: self.memory.filled]
        if self.context.sets.task == 0 or not len(y):
            return
        h = self.embed(x)[1]
        for shares in to_device(self._rate_shares(len(y)), h.device):
            self.context.run(("tune", len(y)), self._train_head, h, y, shares)

    def _rate_shares(self, n: int) -> Tensor:
        """Return the share of the learning rate for each epoch and batch of n exemplars."""
        parts = math.ceil(n / self.context.batch_size)
        batch = torch.arange(self.epochs * parts, device="cpu").view(self.epochs, parts)
        late = (batch >= self.drop) & (self.drop > 0)
        return torch.where(late, 0.1, 1.0)

    def _train_head(self, h: Tensor, y: Tensor, shares: Tensor) -> None:
        """Train the classifier for one epoch."""
        parameters = [self.head.weight] if self.frozen else list(self.head.parameters())
        constant = ~self.context.sets.new if self.frozen else None
        parts = len(shares)
        for k in range(parts):  # y is sorted, so each part has all classes
            z = self.head.scale * self.head.cosine(h[k::parts], constant)
            loss = F.cross_entropy(z, y[k::parts])
            grads = torch.autograd.grad(loss, parameters)  # .grad belongs to the learner
            grads = tuple(shares[k] * g for g in grads)
            foreach_add_([p.detach() for p in parameters], grads, alpha=-self.tuning_lr)
