"""LUCIR: learning a unified classifier incrementally via rebalancing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
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
from dualcba.normalization.statistics import batch_norms, evaluation_mode, without_tracking
from dualcba.randomness import generator


class LUCIR(ExemplarMethod):
    """A cosine classifier with feature distillation and a margin between old and new classes.

    L = CE + 5·√t · (1 − cos(h, teacher's h)) + ½ Σ_{k=1,2} max(0, ½ − cos(h, w_y) + cos(h, w_k))

    where t is the number of earlier tasks and the teacher is the network at the beginning of the
    task. The first two terms are the mean over the new batch plus the mean over the memory draw.
    The last term is the mean over samples of the classes that the teacher knows; w_k are the
    weights of the two nearest new classes.

    From the second task on, the weight of a class is imprinted by the first batch that contains the
    class: it is set to the mean normalised feature, scaled to the mean norm of the old weights.
    When a task ends, its samples are read again to select exemplars by herding. Then the head alone
    is trained on the features of the exemplars for 20 epochs with a learning rate of 0.01.

    Parameters
    ----------
    distillation, scale
        The weight of the distillation, 5 above, and the initial scale of the cosines.
    frozen
        Whether the weights of old classes are constant, during a task and in the training of the
        head at its end. That training then changes only the weights of the newest classes, and not
        the scale.
    drop
        The number of batches after which the learning rate of the training of the head is divided
        by 10; 0 means never.
    released
        Whether to compute the same as the code released with the conference paper on CBA, together
        with `merge`, `frozen` and a `drop` of 10. Then w_k are the weights of the two nearest
        classes that are not old, including those of later tasks, and with `frozen` the weights of
        classes of later tasks are constant as well. A run imprints the weights before the first
        step of a task, from all its samples. The head is also trained after the first task. This
        training minimises CE and the margin ranking, and includes the scale. In each epoch the
        exemplars are shuffled, augmented and normalised by batch statistics again. Herding uses
        features that are not normalised.
    rehearse, merge, negatives
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
        released: bool = False,
        rehearse: bool = True,
        merge: bool = False,
        negatives: bool = False,
    ) -> None:
        super().__init__(rehearse=rehearse, merge=merge, negatives=negatives)
        check_flags(frozen=frozen, released=released)
        self.distillation, self.scale = distillation, scale
        self.frozen, self.drop = frozen, drop
        self.released = self.previews_task = released

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
        rival = cosine.masked_fill(~self._rivals(), -torch.inf).topk(self.nearest).values
        old = self.teacher.known[y]
        return (F.relu(self.margin - own + rival).mean(1) * old).sum() / old.sum().clamp(min=1)

    def _rivals(self) -> Tensor:
        """Return the mask (C,) of classes that old samples are ranked against."""
        return ~self.teacher.known if self.released else self.context.sets.new

    def _cosine(self, h: Tensor) -> Tensor:
        return self.head.cosine(h, self._constant() if self.frozen else None)

    def _constant(self) -> Tensor:
        """Return the mask (C,) of classes whose weights are constant in a task, if `frozen`."""
        return ~self.context.sets.new if self.released else self.teacher.known

    def after_step(self, noise: Tensor | None) -> None:
        """Imprint classes that appear for the first time; if `released`, only in their task."""
        good = self.context.good
        self._imprint(*self._latest, good & self.context.sets.new if self.released else good)

    @torch.no_grad()
    def preview_task(self, x: Tensor, y: Tensor) -> None:
        """Imprint the weights of the new classes from raw samples, before the first step of a task.

        Features are computed in evaluation mode. Samples of other classes are ignored. Steps do not
        imprint the same classes again. In the first task no weight is changed.
        """
        self._imprint(self.embed(x)[1], y, self.context.sets.new)

    def _imprint(self, h: Tensor, y: Tensor, valid: Tensor) -> None:
        """Imprint the classes of a mask `valid`, () or (C,), that have not been met before."""
        weight, known = self.head.weight, self.teacher.known
        member = F.one_hot(y, len(weight)).to(h.dtype)
        present = member.sum(0) > 0
        length = (weight.norm(dim=1) * known).sum() / known.sum().clamp(min=1)
        imprint = F.normalize(member.T @ F.normalize(h)) * length
        present &= valid
        first = present & ~self.met & (self.context.sets.later > 0)
        weight.copy_(torch.where(first.unsqueeze(1), imprint, weight))
        self.met.logical_or_(present)

    def direction(self, h: Tensor) -> Tensor:
        """Return the features (n, d) for herding: normalised, unless `released`."""
        return h if self.released else super().direction(h)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Select exemplars, then train only the classifier on them."""
        super().end_task(x, y)
        n = self.memory.filled
        if self.released and n:
            self._tune_on_samples(n)
        elif n and self.context.sets.task > 0:
            self._tune_on_features(n)

    def _tune_on_features(self, n: int) -> None:
        """Train the classifier on the features of n exemplars in evaluation mode."""
        h, y = self.embed(self.memory.x[:n])[1], self.memory.y[:n]
        for shares in to_device(self._rate_shares(n), h.device):
            self.context.run(("tune", n), self._train_head, h, y, shares)

    def _tune_on_samples(self, n: int) -> None:
        """Train the classifier on n exemplars, shuffled and augmented again in each epoch."""
        device, transform = self.memory.y.device, self.context.transform
        task = self.context.sets.task
        rng = generator(self.context.seed, "tuning", task)  # no state: undone work can be repeated
        for shares in to_device(self._rate_shares(n), device):
            arrays = rng.permutation(n), transform.draw(rng, n)
            drawn = (to_device(torch.from_numpy(a), device) for a in arrays)
            rows, params = (torch.split(t, self.context.batch_size) for t in drawn)
            for inputs in zip(rows, params, shares, strict=True):
                self.context.run(("tune", len(inputs[0])), self._sample_step, *inputs)

    def _rate_shares(self, n: int) -> Tensor:
        """Return the share of the learning rate for each epoch and batch of n exemplars."""
        parts = math.ceil(n / self.context.batch_size)
        batch = torch.arange(self.epochs * parts, device="cpu").view(self.epochs, parts)
        late = (batch >= self.drop) & (self.drop > 0)
        return torch.where(late, 0.1, 1.0)

    def _train_head(self, h: Tensor, y: Tensor, shares: Tensor) -> None:
        """Train the classifier for one epoch."""
        parts = len(shares)
        for k in range(parts):  # y is sorted, so each part has all classes
            self._head_step(h[k::parts], y[k::parts], shares[k])

    def _sample_step(self, rows: Tensor, params: Tensor, share: Tensor) -> None:
        """Train the classifier for one step on rows of the memory, augmented by `params`."""
        x, y, _ = self.memory.read(rows)
        self._head_step(self._batch_features(x, params), y, share)

    @torch.no_grad()
    def _batch_features(self, x: Tensor, params: Tensor) -> Tensor:
        """Return features of augmented samples, normalised by batch statistics without tracking."""
        network = self.context.network
        # a single sample has no batch statistics
        mode = evaluation_mode(network) if len(x) == 1 else nullcontext()
        with mode, without_tracking(batch_norms(network)), self.context.autocast():
            return cast(Tensor, network(self.context.transform(x, params))[1])

    def _head_step(self, h: Tensor, y: Tensor, share: Tensor) -> None:
        """Train the classifier for one step, with a share of the learning rate."""
        alone = self.frozen and not self.released
        parameters = [self.head.weight] if alone else list(self.head.parameters())
        grads = torch.autograd.grad(self._head_loss(h, y), parameters)  # .grad: the learner's
        grads = tuple(share * g for g in grads)
        foreach_add_([p.detach() for p in parameters], grads, alpha=-self.tuning_lr)

    def _head_loss(self, h: Tensor, y: Tensor) -> Tensor:
        """Return the loss of the head's training, without the term on features."""
        constant = ~self.context.sets.new if self.frozen else None
        loss = F.cross_entropy(self.head.scale * self.head.cosine(h, constant), y)
        return loss + self.ranking(h, y) if self.released else loss
