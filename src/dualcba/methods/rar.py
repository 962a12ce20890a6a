"""Repeated augmented rehearsal."""

from __future__ import annotations

import torch

from dualcba.data.randaugment import RandAugment, RandAugmentTransform, check_images
from dualcba.data.transforms import Transform
from dualcba.errors import expected
from dualcba.memory import Memory
from dualcba.methods.derpp import DERpp


class RAR(DERpp):
    """DER++ on strongly augmented samples, new ones and memories alike.

    L = CE(new) + α·MSE(z(mem₁), stored logits) + β·CE(mem₂)

    RandAugment takes the place of the flip, after the crop. It needs uint8 images.

    Parameters
    ----------
    alpha, beta
        Weights of the stored logits and of the labels.
    repeats
        How often each step is made, K, every time with fresh draws; the memory takes the new
        samples once.
    operations, magnitude
        Of RandAugment: how many in a row, and how strong, in bins from 0 to 30.

    References
    ----------
    Zhang et al., A simple but strong baseline for online continual learning: repeated augmented
    rehearsal, NeurIPS 2022.
    """

    title = "RAR"

    def __init__(
        self,
        *,
        alpha: float = 0.2,
        beta: float = 0.5,
        repeats: int = 1,
        operations: int = 1,
        magnitude: int = 14,
    ) -> None:
        super().__init__(alpha=alpha, beta=beta)
        if repeats < 1:
            raise ValueError(expected("repeats", repeats, "at least 1"))
        self.repeats = repeats
        self.operations = operations
        self.magnitude = magnitude

    def make_transform(self, transform: Transform) -> Transform:
        """The dataset's crop, then RandAugment, no flip."""
        randaugment = RandAugment(self.operations, self.magnitude)
        return RandAugmentTransform(transform, randaugment, flip=False)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """DER++'s, if the samples are images."""
        check_images(shape, dtype)
        return super().make_memory(size, shape, dtype, C)
