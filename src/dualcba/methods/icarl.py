"""iCaRL: incremental classifier and representation learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Context
from dualcba.methods.exemplars import ExemplarMethod, check_flags
from dualcba.methods.nearest_mean import class_means, class_sums, scores_by_means
from dualcba.methods.scorers import Logits, NearestMeans
from dualcba.methods.teacher import join


class ICaRL(ExemplarMethod):
    """Sigmoid outputs with distillation, exemplars, and classification by the nearest class mean.

    L = Σ_c BCE(z_c, target_c)

    The sum is over the classes seen so far. L is the mean over the new batch and the memory draw
    together. The target is the teacher's sigmoid for the classes that the teacher knows, else 1 for
    the sample's class and 0 for the others. The teacher is the network at the beginning of the
    task.

    The prediction is the class with the nearest mean of normalised features. The mean of a class is
    that of its exemplars. A class without exemplars has a running mean of its training features. If
    no class has a mean, the logits are used. When a task ends, its samples are read again to select
    exemplars by herding.

    Parameters
    ----------
    decay
        The decay of the running mean: a step has `decay` times the weight of the next step.
    class_mean
        Whether L is the mean over the classes instead of the sum.
    normalise
        Whether features are normalised, for herding, class means and distances.
    rehearse, merge, negatives
        See `ExemplarMethod`.

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

    def __init__(
        self,
        *,
        decay: float = 0.9,
        class_mean: bool = False,
        normalise: bool = True,
        rehearse: bool = True,
        merge: bool = False,
        negatives: bool = False,
    ) -> None:
        super().__init__(rehearse=rehearse, merge=merge, negatives=negatives)
        check_flags(class_mean=class_mean, normalise=normalise)
        self.decay = decay
        self.class_mean, self.normalise = class_mean, normalise

    def bind(self, context: Context) -> None:
        """Create the teacher and buffers for the class means."""
        super().bind(context)
        weight = cast(Tensor, context.network.head.weight).detach()
        self.register_buffer("sums", torch.zeros_like(weight))  # (C, d)
        self.register_buffer("counts", weight.new_zeros(len(weight)))
        self.register_buffer("means", torch.zeros_like(weight), persistent=False)
        self.register_buffer("has_mean", self.counts > 0, persistent=False)

    def begin_task(self) -> None:
        """Reset the running means."""
        super().begin_task()
        self.sums.zero_()
        self.counts.zero_()

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the binary cross-entropy to the labels and to the teacher's outputs."""
        self._update_running_means(new)
        all_ = join(new, mem)
        seen = self.context.sets.seen.index_fill(0, all_.y, True)
        target = self.targets(all_.x, all_.y)
        bce = F.binary_cross_entropy_with_logits(all_.z, target, reduction="none")
        each = (bce * seen).sum(1)
        return (each / seen.sum() if self.class_mean else each).mean()

    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Return targets (n, C): the teacher's sigmoid for the classes it knows, else the label."""
        old, _ = self.teacher(x)
        return torch.where(self.teacher.known, old.sigmoid(), self._onehot(y))

    @torch.no_grad()
    def _update_running_means(self, new: Batch) -> None:
        member = self._onehot(new.y)
        self.sums.mul_(self.decay).addmm_(member.T, self.direction(new.h))
        self.counts.mul_(self.decay).add_(member.sum(0))

    def before_scores(self) -> None:
        """Compute the class means: of the exemplars, or else the running means."""
        self.context.run(("means", self.memory.filled), self._compute_means)

    def _compute_means(self) -> None:
        sums, counts, has = self.sums, self.counts, self.counts > 0
        if self.memory.filled:
            rows = slice(self.memory.filled)
            h = self.direction(self.embed(self.memory.x[rows])[1])
            of_memory, count = class_sums(h, self.memory.y[rows], len(counts))
            stored = count > 0
            sums = torch.where(stored.unsqueeze(1), of_memory, sums)
            counts = torch.where(stored, count, counts)
            has = has | stored
        self.means.copy_(class_means(sums, counts, normalise=self.normalise))
        self.has_mean.copy_(has)

    def scores(self, x: Tensor) -> Tensor:
        """Return minus the squared distance to each class mean; −∞ for classes without a mean."""
        outputs = self.outputs(x)
        return scores_by_means(*outputs, self.means, self.has_mean, normalise=self.normalise)

    def scorer(self) -> nn.Module:
        """Return a module with the current class means."""
        logits = Logits(self.context.network)
        return NearestMeans(logits, self.means, self.has_mean, normalise=self.normalise)

    def direction(self, h: Tensor) -> Tensor:
        """Return the features, normalised if `normalise`."""
        return F.normalize(h) if self.normalise else h

    def _onehot(self, y: Tensor) -> Tensor:
        return F.one_hot(y, len(self.counts)).to(self.counts.dtype)
