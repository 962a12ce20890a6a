"""Fused augmentation: a resized crop, a flip, colour jitter and greyscale in one launch.

On a GPU this is a Triton kernel (`augment_triton`) with one program per image. Otherwise
`data.resized_crop` and `data.colour` compute the same in plain torch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dualcba.kernels.loader import load_kernels

MAX_PIXELS = 4096
"""The maximum number of pixels of an image, bounded by the registers of a kernel program."""

CHANNELS = 3

kernels = partial(load_kernels, "augment_triton")


def applies(x: Tensor) -> bool:
    """Whether the kernel supports these images (n, channels, H, W)."""
    return (
        x.is_cuda
        and x.dtype in (torch.uint8, torch.float32)
        and x.is_contiguous()
        and x.shape[1] == CHANNELS
        and 0 < x.shape[2] * x.shape[3] <= MAX_PIXELS
        and len(x) > 0
        and kernels() is not None
    )


def augment(x: Tensor, params: Tensor, *, colours: bool) -> Tensor:
    """Return augmented images in float32, uint8 ones in [0, 1].

    `params` begins with the columns of `resized_crop.grid_columns`; if `colours`, those of
    `colour.colour_columns` follow.
    """
    return kernels().augment(x, params.contiguous(), colours=colours)  # type: ignore[no-any-return]
