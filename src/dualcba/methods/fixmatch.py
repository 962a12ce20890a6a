"""FixMatch around a rehearsal method, for streams in which few samples have a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data.randaugment import RandAugment, RandAugmentTransform, check_images
from dualcba.data.transforms import Transform
from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.memory import Memory
from dualcba.methods.base import Context, Method


class FixMatch(Method):
    """The method's own loss on labelled samples, plus FixMatch on those without a label (−1).

    L = L_method(labelled, mem) + weight · mean over unlabelled of [max p ≥ threshold] CE(strong, ŷ)

    p and ŷ come from the raw network on the usual (weak) view of the sample; the strong view adds
    RandAugment(2, 10) and a cutout. Means are over the labelled and over the unlabelled samples
    of the batch. Only labelled samples enter the memory. `labelled`: so many samples lead each
    batch and have a label; they have batch statistics of their own and no strong view.

    References
    ----------
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence,
    2020.
    """

    unlabelled = True

    def __init__(
        self, method: Method, *, threshold: float = 0.95, weight: float = 1.0, labelled: int = 0
    ) -> None:
        super().__init__()
        self.method = method
        self.threshold = threshold
        self.weight = weight
        self.labelled = labelled
        for name in ("draws", "columns", "repeats", "rereads_task", "one_per_class", "single_pass"):
            setattr(self, name, getattr(method, name))

    def bind(self, context: Context) -> None:
        """Hand the learner's parts on."""
        super().bind(context)
        self.method.bind(context)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """The method's memory, of images."""
        check_images(shape, dtype)
        return self.method.make_memory(size, shape, dtype, C)

    def make_transform(self, transform: Transform) -> Transform:
        """The method's augmentation is the weak view."""
        return self.method.make_transform(transform)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """The strong view."""
        strong = RandAugment(operations=2, magnitude=10, cutout=True)
        return {"strong": RandAugmentTransform(transform, strong)}

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """The method's terms on what is labelled, and the strong view's on what is not."""
        known = (new.y >= 0).to(new.z.dtype)
        n = len(known)
        share = known * (n / known.sum().clamp(min=1.0))
        terms = self.method.terms(replace(new, y=new.y.clamp(min=0), each=share), mem)
        rest = 1 - known[self.labelled :]  # what has a strong view, and no label
        confidence, guess = new.z[self.labelled :].detach().softmax(1).max(1)
        sure = (confidence >= self.threshold).to(known.dtype) * rest
        strong = replace(new.views["strong"], y=guess)
        each = sure * (len(rest) / rest.sum().clamp(min=1.0))
        return [*terms, CrossEntropy(strong, self.weight, each=each)]

    def outer_terms(self, outer: Batch) -> list[Term]:
        """The method's own."""
        return self.method.outer_terms(outer)

    def noise(self, rng: np.random.Generator, step: int) -> NDArray[np.float64] | None:
        """The method's own."""
        return self.method.noise(rng, step)

    def after_step(self, noise: Tensor | None) -> None:
        """The method's own."""
        self.method.after_step(noise)

    def begin_task(self) -> None:
        """The method's own."""
        self.method.begin_task()

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """The method's own."""
        self.method.end_task(x, y)

    def before_scores(self) -> None:
        """The method's own."""
        self.method.before_scores()

    def scores(self, x: Tensor) -> Tensor:
        """The method's own."""
        return self.method.scores(x)
