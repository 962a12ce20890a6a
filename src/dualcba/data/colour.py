"""Colour jitter and greyscale of whole batches, as in torchvision on floats in [0, 1].

Brightness, contrast and saturation are blends with a black, a uniform or a grey image:

    x ← clamp(f·x + (1 − f)·D)        D = 0, the mean of the grey image, or the grey image

and greyscale is saturation with f = 0. Each image has its own order of the four adjustments. The
hue of all images is shifted in one pass, with three blends before and three after it. Each image
uses the blends that its order requires, and the others have f = 1. The seventh blend is greyscale.
The parameters of an image, from `colour_columns`, are:

    f, share of the mean, share of the grey image    7 times: three blends, three blends, greyscale
    shift of the hue                                 in turns, −0.5 to 0.5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
CONTRAST, SATURATION, HUE = 1, 2, 3
NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0])
"""Amounts that leave the image unchanged."""

LUMA = 0.2989, 0.587, 0.114
"""The weights of red, green and blue in the grey image, as in torchvision."""

BEFORE, BLENDS = 3, 7  # blends before the hue; all blends
COLUMNS = 3 * BLENDS + 1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColourJitter:
    """Ranges and probabilities of the random parameters; the defaults are those of `full`."""

    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """Brightness, contrast and saturation are factors of 1 ± strength, the hue a shift."""

    jitter: float = 0.8
    """The probability of applying the four adjustments."""

    grey: float = 0.2
    """The probability of greyscale."""

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """Draw the parameters of n images.

        >>> ColourJitter().draw(np.random.default_rng(0), 5).shape
        (5, 22)
        """
        u = rng.random((n, 10))
        jittered = u[:, 8:9] < self.jitter
        amounts = NEUTRAL + (2 * u[:, :4] - 1) * self.strength * jittered
        return colour_columns(u[:, 4:8].argsort(1), amounts, u[:, 9] < self.grey)


def colour_columns(places: NDArray[np.int64], amounts: Floats, grey: NDArray[np.bool_]) -> Floats:
    """Return the parameters (n, 22) of n images.

    `places` and `amounts` (n, 4) have a column per adjustment, in the order of `ADJUSTMENTS`: its
    position in the sequence of adjustments, 0 to 3, and its factor or the shift of the hue.
    """
    n = len(places)
    blends, hue = places[:, :HUE], places[:, HUE:]
    slots = blends + (blends > hue) * (BEFORE - 1 - hue)
    factors = amounts[:, :HUE]
    out = np.zeros((n, BLENDS, 3))
    out[:, :, 0] = 1.0
    rows = np.arange(n)
    out[rows[:, None], slots, 0] = factors
    for kind, share in ((CONTRAST, 1), (SATURATION, 2)):
        out[rows, slots[:, kind], share] = 1 - factors[:, kind]
    out[grey, -1] = 0.0, 0.0, 1.0
    return np.concatenate([out.reshape(n, -1), amounts[:, HUE:]], 1)


def adjust_colours(x: Tensor, params: Tensor) -> Tensor:
    """Apply jitter and greyscale to images (n, 3, H, W) in [0, 1]; `params` (n, 22) as above."""
    params = params.to(x.dtype)
    blends = params[:, :-1].view(-1, BLENDS, 3, 1, 1, 1)
    for k in range(BLENDS):
        if k == BEFORE:
            x = shift_hue(x, params[:, -1:].view(-1, 1, 1))
        x = _blend(x, *blends[:, k].unbind(1))
    return x


def _blend(x: Tensor, factor: Tensor, mean: Tensor, grey: Tensor) -> Tensor:
    """Return clamp(factor·x + mean·(mean of the grey image) + grey·(grey image))."""
    luma = to_grey(x)
    out = torch.addcmul(mean * luma.mean((2, 3), keepdim=True), grey, luma)
    return torch.addcmul(out, factor, x).clamp_(0, 1)


def to_grey(x: Tensor) -> Tensor:
    """Return the grey image (n, 1, H, W) of colour images."""
    red, green, blue = x.unbind(1)
    grey = (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return grey.unsqueeze(1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of images (n, 3, H, W) by (n, 1, 1) turns.

    With h the hue in sixths of a turn, v the value and c the chroma, the colour after the shift is
    v − c·clamp(min(k, 4 − k), 0, 1) with k = h + 5, 3 and 1 modulo 6 for red, green and blue. This
    is the conversion to HSV and back, without branches.
    """
    red, green, blue = x.unbind(1)
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    per = 1 / torch.where(chroma == 0, 1.0, chroma)
    hue = torch.where(value == green, 2 + (blue - red) * per, 4 + (red - green) * per)
    hue = torch.where(value == red, (green - blue) * per, hue) + 6 * shift
    k = torch.remainder(torch.stack([hue + 5, hue + 3, hue + 1], 1), 6)
    part = torch.minimum(k, 4 - k).clamp_(0, 1)
    turned = torch.addcmul(value.unsqueeze(1), chroma.unsqueeze(1), part, value=-1)
    return torch.where(shift.unsqueeze(1) == 0, x, turned)
