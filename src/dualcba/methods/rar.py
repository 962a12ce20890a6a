"""RAR: repeated augmented rehearsal."""

from __future__ import annotations

import torch

from dualcba.data.randaugment import RandAugment, RandAugmentTransform, check_images
from dualcba.data.transforms import Transform
from dualcba.errors import expected
from dualcba.memory import Memory
from dualcba.methods.derpp import DERpp


class RAR(DERpp):
    """DER++ with strong augmentation of new and memory samples.

    L = CE(new) + α·MSE(z(mem₁), stored logits) + β·CE(mem₂)

    RandAugment replaces the flip and follows the crop. It needs uint8 images.

    Parameters
    ----------
    alpha, beta
        The weights of the stored logits and of the labels.
    repeats
        The number of updates per batch, K, each with new draws. The new samples enter the memory
        once.
    operations, magnitude
        The number of consecutive RandAugment operations, and their strength from 0 to 30.

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
        """Return the crop of the dataset followed by RandAugment, without a flip."""
        randaugment = RandAugment(self.operations, self.magnitude)
        return RandAugmentTransform(transform, randaugment, flip=False)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return the memory of DER++; raise unless the samples are images."""
        check_images(shape, dtype)
        return super().make_memory(size, shape, dtype, C)
