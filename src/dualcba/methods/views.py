"""Views of samples that several methods use."""

from __future__ import annotations

from dualcba.data.augmentation import crop_and_flip, plain, randaugment
from dualcba.data.transforms import Transform

CHAIN_SCALE = 0.6, 1.0
"""The range of the crop's area, as a share of the image's area."""


def chain_of_views(transform: Transform, operations: int, magnitude: int) -> dict[str, Transform]:
    """Return four views: v0 (raw), v1 (crop and flip), v2 and v3 (RandAugment of the previous)."""
    return {
        "v0": plain(transform),
        "v1": crop_and_flip(transform, CHAIN_SCALE),
        "v2": randaugment(transform, operations, magnitude, source="v1"),
        "v3": randaugment(transform, operations, magnitude, source="v2"),
    }
