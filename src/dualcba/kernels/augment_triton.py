"""Triton kernel of the augmentation: one program crops, flips and recolours one image.

Every operation of the colour jitter is a few instructions on pixels that stay in registers, while
plain torch would launch about 80 small kernels. The formulas are those of `data.resized_crop` and
`data.colour`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CROP = tl.constexpr(6)
"""Columns of the crop; those of the blends and the shift of the hue follow."""

BEFORE, BLENDS = tl.constexpr(3), tl.constexpr(7)


@triton.jit
def _parameter(params, k):
    """Return one parameter of the image."""
    return tl.load(params + k).to(tl.float32)


@triton.jit
def _source(params, k, position, side):
    """Return the lower source pixel, the upper one, and the weight of the upper one."""
    edge = _parameter(params, k + 2)
    centre = (2 * position + 1).to(tl.float32) / side - 1
    centre = tl.minimum(tl.maximum(centre, -edge), edge)
    at = _parameter(params, k) + _parameter(params, k + 1) * centre  # from −1 to 1
    at = tl.minimum(tl.maximum(((at + 1) * side - 1) / 2, 0.0), side - 1.0)
    low = tl.floor(at)
    first = low.to(tl.int32)
    return first, tl.minimum(first + 1, side - 1), at - low


@triton.jit
def _pixels(plane, top, bottom, down, left, right, across, W, inside, BYTES: tl.constexpr):
    """Interpolate the pixels of one channel."""
    a = tl.load(plane + top * W + left, mask=inside, other=0).to(tl.float32)
    b = tl.load(plane + top * W + right, mask=inside, other=0).to(tl.float32)
    c = tl.load(plane + bottom * W + left, mask=inside, other=0).to(tl.float32)
    d = tl.load(plane + bottom * W + right, mask=inside, other=0).to(tl.float32)
    upper = a * (1 - across) + b * across
    value = upper * (1 - down) + (c * (1 - across) + d * across) * down
    if BYTES:
        value = value * (1 / 255)
    return value


@triton.jit
def _clamp(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _blend(red, green, blue, factor, mean, grey, inside, count):
    """Return clamp(factor·x + mean·(mean of the grey image) + grey·(grey image))."""
    luma = 0.2989 * red + 0.587 * green + 0.114 * blue
    other = mean * (tl.sum(tl.where(inside, luma, 0.0), 0) / count) + grey * luma
    return (
        _clamp(factor * red + other),
        _clamp(factor * green + other),
        _clamp(factor * blue + other),
    )


@triton.jit
def _turned(value, chroma, k):
    """Return a channel of a colour, from its value, its chroma and k, see `colour.shift_hue`."""
    k = k - 6 * tl.floor(k / 6)
    return value - chroma * _clamp(tl.minimum(k, 4 - k))


@triton.jit
def _shift_hue(red, green, blue, shift):
    """Shift the hue, in turns; a shift of 0 changes nothing."""
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    per = 1 / tl.where(chroma == 0, 1.0, chroma)
    hue = tl.where(value == green, 2 + (blue - red) * per, 4 + (red - green) * per)
    hue = tl.where(value == red, (green - blue) * per, hue) + 6 * shift
    none = shift == 0
    return (
        tl.where(none, red, _turned(value, chroma, hue + 5)),
        tl.where(none, green, _turned(value, chroma, hue + 3)),
        tl.where(none, blue, _turned(value, chroma, hue + 1)),
    )


@triton.jit
def augment_kernel(
    x, numbers, out, H, W, columns,
    P: tl.constexpr, BYTES: tl.constexpr, COLOURS: tl.constexpr,
):  # fmt: skip
    """Augment one image of three channels, by its numbers; Triton has a `params` of its own."""
    image, pixel, size = tl.program_id(0), tl.arange(0, P), H * W
    inside = pixel < size
    numbers += image * columns
    x += image * 3 * size
    out += image * 3 * size
    left, right, across = _source(numbers, 0, pixel % W, W)
    top, bottom, down = _source(numbers, 3, pixel // W, H)
    red = _pixels(x, top, bottom, down, left, right, across, W, inside, BYTES)
    green = _pixels(x + size, top, bottom, down, left, right, across, W, inside, BYTES)
    blue = _pixels(x + 2 * size, top, bottom, down, left, right, across, W, inside, BYTES)
    if COLOURS:
        for k in tl.static_range(BLENDS):
            if k == BEFORE:
                shift = _parameter(numbers, CROP + 3 * BLENDS)
                red, green, blue = _shift_hue(red, green, blue, shift)
            factor = _parameter(numbers, CROP + 3 * k)
            mean = _parameter(numbers, CROP + 3 * k + 1)
            grey = _parameter(numbers, CROP + 3 * k + 2)
            red, green, blue = _blend(red, green, blue, factor, mean, grey, inside, size)
    tl.store(out + pixel, red, mask=inside)
    tl.store(out + size + pixel, green, mask=inside)
    tl.store(out + 2 * size + pixel, blue, mask=inside)


def augment(x: Tensor, params: Tensor, *, colours: bool) -> Tensor:
    """Return augmented images, see `dualcba.kernels.augment`."""
    n, _, H, W = x.shape
    out = torch.empty_like(x, dtype=torch.float32)
    P = int(triton.next_power_of_2(H * W))
    augment_kernel[(n,)](
        x, params, out, H, W, params.shape[1],
        P=P, BYTES=x.dtype == torch.uint8, COLOURS=colours, num_warps=min(16, max(4, P // 256)),
    )  # fmt: skip
    return out
