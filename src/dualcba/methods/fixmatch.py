"""FixMatch around a rehearsal method, for streams with few labelled samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dualcba.data.randaugment import RandAugment, RandAugmentTransform, check_images
from dualcba.data.transforms import Transform
from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.memory import Memory
from dualcba.methods.base import Method
from dualcba.methods.wrapper import Wrapper


class FixMatch(Wrapper):
    """The loss of a method on labelled samples, plus FixMatch on unlabelled samples (label −1).

    L = L_method(labelled, mem) + weight · mean over unlabelled of [max p ≥ threshold] CE(strong, ŷ)

    p and ŷ are the raw network's posterior and prediction on the usual (weak) view of the sample.
    The strong view adds RandAugment(2, 10) and a cutout. The means are over the labelled and over
    the unlabelled samples of the batch. Only labelled samples enter the memory.

    Parameters
    ----------
    method
        The method to wrap.
    threshold
        The confidence above which a prediction is used as a label.
    weight
        The weight of the unlabelled samples.
    labelled
        The number of labelled samples at the start of each batch. They have separate batch
        statistics and no strong view. 0 means that any sample may be labelled.
    every
        Whether all samples with a strong view are used as unlabelled samples, not only those
        without a label. With `labelled`, the labels of all later samples are then ignored.
    adapted
        Whether a bias adaptor corrects the logits of the strong view.

    References
    ----------
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence,
    2020.
    """

    unlabelled = True

    def __init__(
        self,
        method: Method,
        *,
        threshold: float = 0.95,
        weight: float = 1.0,
        labelled: int = 0,
        every: bool = False,
        adapted: bool = True,
    ) -> None:
        super().__init__(method)
        self.threshold = threshold
        self.weight = weight
        self.labelled = labelled
        self.every = every
        self.adapted = adapted

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return the memory of the wrapped method; raise unless the samples are images."""
        check_images(shape, dtype)
        return super().make_memory(size, shape, dtype, C)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the transform of the strong view."""
        strong = RandAugment(operations=2, magnitude=10, cutout=True)
        return {"strong": RandAugmentTransform(transform, strong)}

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Let the wrapped method observe the labelled samples."""
        self.method.observe(self._labelled(new, self._has_label(new)), mem)

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the method's terms of labelled samples, and CE(strong, ŷ) of unlabelled ones."""
        labelled = self._has_label(new)
        terms = self.method.terms(self._labelled(new, labelled), mem)
        own = labelled[self.labelled :]  # the samples with a strong view
        unlabelled = torch.ones_like(own) if self.every else 1 - own
        confidence, guess = new.z[self.labelled :].detach().softmax(1).max(1)
        confident = (confidence >= self.threshold).to(labelled.dtype) * unlabelled
        strong = replace(new.views["strong"], y=guess)
        each = confident * (len(unlabelled) / unlabelled.sum().clamp(min=1.0))
        return [*terms, CrossEntropy(strong, self.weight, self.adapted, each=each)]

    def _has_label(self, new: Batch) -> Tensor:
        """Return (n,) 1 for samples whose label is used, else 0."""
        labelled = (new.y >= 0).to(new.z.dtype)
        if self.every and self.labelled:
            labelled[self.labelled :].zero_()
        return labelled

    def _labelled(self, new: Batch, labelled: Tensor) -> Batch:
        """Return the batch with weights (n,) of mean 1, which are 0 for unlabelled samples."""
        weights = labelled * (len(labelled) / labelled.sum().clamp(min=1.0))
        return replace(new, y=new.y.clamp(min=0), each=weights)
