"""Batched augmentation and normalisation on the device; its random numbers come from the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.errors import at_least, expected


class Transform(nn.Module):
    """Random crop after zero padding, random flip, and normalisation, for whole batches.

    Parameters
    ----------
    mean, std
        Per channel, of values in [0, 1] for uint8 inputs and of the values as they are otherwise.
        One number stands for all channels.
    pad
        Zeros on each side before a crop of the original size; 0 for no crop.
    flip
        Whether to mirror half of the images.

    >>> t = Transform([0.5], [0.5], pad=4, flip=True)
    >>> x = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    >>> round(t(x).unique().item(), 6)
    1.0
    >>> t(x, torch.from_numpy(t.draw(np.random.default_rng(0), 2))).shape
    torch.Size([2, 1, 8, 8])
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], *, pad: int = 0, flip: bool = False
    ) -> None:
        super().__init__()
        at_least(0, pad=pad)
        self.pad = pad
        self.flip = flip
        m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        if not bool((s > 0).all()):
            raise ValueError(expected("std", std, "numbers above 0"))
        self.register_buffer("scale", (1 / s).float(), persistent=False)
        self.register_buffer("shift", (-m / s).float(), persistent=False)

    @property
    def random(self) -> bool:
        """Whether it draws anything."""
        return self.pad > 0 or self.flip

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """(n, 3): the crop's top and left edge, and whether to flip."""
        top = 2 * self.pad + 1
        return rng.integers(0, [top, top, 2 if self.flip else 1], (n, 3))

    def forward(self, x: Tensor, params: Tensor | None = None) -> Tensor:
        """Raw samples (n, ...) → normalised floats; augmented where `params` are given."""
        return self.normalize(x if params is None or not self.random else self.augment(x, params))

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Crop and flip; raw images in and out."""
        how = crop_by_window if x.device.type == "cpu" else crop_by_gather
        return how(x, params, self.pad)

    def normalize(self, x: Tensor) -> Tensor:
        """(x − mean) / std; uint8 is first brought to [0, 1]."""
        shape = (-1, *([1] * (x.dim() - 2)))
        scale, shift = self.scale.view(shape), self.shift.view(shape)
        return torch.addcmul(
            shift, x.to(scale.dtype), scale / 255 if x.dtype == torch.uint8 else scale
        )


def crop_by_gather(x: Tensor, params: Tensor, pad: int) -> Tensor:
    """Crop and flip by one gather: what a GPU is quick at."""
    n, channels, height, width = x.shape
    across = torch.arange(width, device=x.device)
    columns = torch.where(params[:, 2:] > 0, width - 1 - across, across) + params[:, 1:2]
    rows = torch.arange(height, device=x.device) + params[:, :1]  # (n, H); columns (n, W)
    pixels = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (n, H, W)
    padded = F.pad(x, [pad] * 4).flatten(2)
    return padded.gather(2, pixels.view(n, 1, -1).expand(n, channels, -1)).view(x.shape)


def crop_by_window(x: Tensor, params: Tensor, pad: int) -> Tensor:
    """Crop and flip on the host: windows into the padded images, some of them mirrored.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> crop_by_window(image, torch.tensor([[1, 1, 1]]), pad=1).tolist()
    [[[[2, 1], [4, 3]]]]
    >>> crop_by_window(image, torch.tensor([[0, 1, 0]]), pad=1).tolist()
    [[[[0, 0], [1, 2]]]]
    """
    n, *shape = x.shape
    padded = F.pad(x, [pad] * 4).numpy()
    sample, channel, row, pixel = padded.strides
    places, steps = (n, 2 * pad + 1, 2 * pad + 1), (sample, row, pixel)
    windows = as_strided(padded, (*places, *shape), (*steps, channel, row, pixel))
    top, left, flip = params.numpy().T
    out = windows[np.arange(n), top, left]
    mirrored = np.flatnonzero(flip)
    out[mirrored] = out[mirrored, ..., ::-1]
    return torch.from_numpy(out)
