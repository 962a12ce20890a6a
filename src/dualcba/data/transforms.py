"""Augment and normalise whole batches on the device; the random numbers come from the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.errors import at_least, expected


class Transform(nn.Module):
    """Random crop after zero padding, random horizontal flip, and normalisation of a batch.

    Parameters
    ----------
    mean, std
        Per channel, or one number for all channels. For uint8 samples they refer to values scaled
        to [0, 1], otherwise to the values themselves.
    pad
        Width of the zero padding on each side before a crop to the original size; 0 for no crop.
    flip
        Whether to flip images horizontally with probability 0.5.

    >>> t = Transform([0.5], [0.5], pad=4, flip=True)
    >>> x = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    >>> round(t(x).unique().item(), 6)
    1.0
    >>> t(x, torch.from_numpy(t.draw(np.random.default_rng(0), 2))).shape
    torch.Size([2, 1, 8, 8])
    """

    scale: Tensor
    shift: Tensor

    columns = 3
    """The number of parameters of each sample."""

    shape: tuple[int, ...] = ()
    """The shape of one sample; a learner sets it."""

    dtype: torch.dtype = torch.uint8
    """The type of the samples; a learner sets it."""

    source: str = ""
    """The name of the view to start from; empty for the sample itself."""

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
        """Whether the augmentation uses random parameters."""
        return self.pad > 0 or self.flip

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """Draw the augmentation parameters of n samples.

        Returns an array of shape (n, 3): top edge and left edge of the crop, and whether to flip.
        """
        offsets = 2 * self.pad + 1
        return rng.integers(0, [offsets, offsets, 2 if self.flip else 1], (n, 3))

    def forward(self, x: Tensor, params: Tensor | None = None) -> Tensor:
        """Normalise raw samples (n, ...), after augmenting them if `params` are given."""
        return self.normalize(x if params is None or not self.random else self.augment(x, params))

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Crop and flip images without normalising them; `params` as returned by `draw`."""
        crop = crop_by_window if x.device.type == "cpu" else crop_by_gather
        return crop(x, params, self.pad)

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std; uint8 values are divided by 255 first."""
        shape = (-1, *([1] * (x.dim() - 2)))
        scale, shift = self.scale.view(shape), self.shift.view(shape)
        return torch.addcmul(
            shift, x.to(scale.dtype), scale / 255 if x.dtype == torch.uint8 else scale
        )


class Unchanged(Transform):
    """Leaves samples unchanged, such as integers, rows of several inputs, or features.

    >>> Unchanged()(torch.tensor([[3, 4]])).tolist()
    [[3, 4]]
    """

    def __init__(self) -> None:
        super().__init__([0.0], [1.0])

    def normalize(self, x: Tensor) -> Tensor:
        """Return the samples themselves."""
        return x


class Mirrored(Transform):
    """Mirrors the images of another transform, with its own random parameters.

    >>> mirrored, x = Mirrored(Transform([0.0], [1.0])), torch.tensor([[[[1.0, 2.0]]]])
    >>> mirrored(x, torch.zeros(1, 3)).flatten().tolist()
    [2.0, 1.0]
    """

    random = True

    def __init__(self, base: Transform) -> None:
        super().__init__([0.0], [1.0])
        self.base = base
        self.columns = base.columns
        self.scale, self.shift = base.scale, base.shift

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw the parameters of the other transform."""
        return self.base.draw(rng, n)

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Augment and mirror images without normalising them."""
        return (self.base.augment(x, params) if self.base.random else x).flip(-1)


def crop_by_gather(x: Tensor, params: Tensor, pad: int) -> Tensor:
    """Crop and flip with a single gather, which is fast on a GPU."""
    n, channels, height, width = x.shape
    column = torch.arange(width, device=x.device)
    columns = torch.where(params[:, 2:] > 0, width - 1 - column, column) + params[:, 1:2]  # (n, W)
    rows = torch.arange(height, device=x.device) + params[:, :1]  # (n, H)
    pixels = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (n, H, W)
    padded = F.pad(x, [pad] * 4).flatten(2)
    return padded.gather(2, pixels.view(n, 1, -1).expand(n, channels, -1)).view(x.shape)


def crop_by_window(x: Tensor, params: Tensor, pad: int) -> Tensor:
    """Crop and flip on the CPU, with windows into the padded images.

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
    flipped = np.flatnonzero(flip)
    out[flipped] = out[flipped, ..., ::-1]
    return torch.from_numpy(out)
