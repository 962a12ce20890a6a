"""Views of samples that several methods use."""

from __future__ import annotations

from dualcba.data.augmentation import crop_and_flip, plain, randaugment
from dualcba.data.transforms import Transform

CHAIN_SCALE = 0.6, 1.0
"""The share of the image's area that the crop of a chain has."""


def chain_of_views(transform: Transform, operations: int, magnitude: int) -> dict[str, Transform]:
    """Return v0, the raw sample; v1, a crop and flip; v2 and v3, RandAugment of the last."""
    return {
        "v0": plain(transform),
        "v1": crop_and_flip(transform, CHAIN_SCALE),
        "v2": randaugment(transform, operations, magnitude, source="v1"),
        "v3": randaugment(transform, operations, magnitude, source="v2"),
    }
