"""RandAugment for whole batches on the device, with the same arithmetic as Pillow.

Everything that does not depend on the pixels is computed once on the host, as tables with one row
per (magnitude, operation, sign): the source position of each pixel, the blending factor, and a
lookup table of grey levels. Each sample draws one row number per operation. The device then makes
three passes. A pass does not change samples whose operation belongs to another pass:

    move    shear, translate, rotate                       a gather of pixels
    blend   brightness, color, contrast, sharpness         D + factor · (x − D)
    map     posterize, solarize, autocontrast, equalize    a lookup of grey levels

Shapes are static and the host never waits for the device, so a CUDA graph can capture all of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data.transforms import Transform
from dualcba.errors import at_least, expected

OPERATIONS = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate",
    "brightness", "color", "contrast", "sharpness",
    "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
BINS = 31  # magnitudes are 0 to 30
UNIT = 1 << 16  # 1.0 in Pillow's fixed-point numbers; image side in units of cutouts
GREY = 127  # grey level of a cutout

LUMA = (19595.0, 38470.0, 7471.0)  # ITU-R 601 in 1/65536; all sums stay exact in float32
COLOR, CONTRAST, SHARPNESS, AUTOCONTRAST, EQUALIZE = map(
    OPERATIONS.index, ("color", "contrast", "sharpness", "autocontrast", "equalize")
)


class RandAugment:
    """Apply N operations to each image, drawn uniformly from `OPERATIONS`.

    Parameters
    ----------
    operations
        Number of operations applied to each image, N.
    magnitude
        The magnitude of operations, 0 to 30, or several from which each operation draws one.
    cutout
        Whether to fill a square of half the image's side with grey afterwards, at a random
        position.

    >>> augment = RandAugment(operations=2, magnitude=10, cutout=True)
    >>> x = torch.arange(2 * 3 * 64).view(2, 3, 8, 8).to(torch.uint8)
    >>> rows = augment.draw(np.random.default_rng(0), 2)
    >>> rows.shape, augment(x, torch.from_numpy(rows)).shape
    ((2, 4), torch.Size([2, 3, 8, 8]))

    References
    ----------
    Cubuk et al., RandAugment: practical automated data augmentation with a reduced search space,
    NeurIPS 2020. Cutout: DeVries and Taylor, 2017, as FixMatch (Sohn et al., NeurIPS 2020) uses it.
    """

    def __init__(
        self, operations: int = 1, magnitude: int | Sequence[int] = 14, *, cutout: bool = False
    ) -> None:
        self.operations = operations
        self.magnitudes = tuple(magnitude) if isinstance(magnitude, Iterable) else (magnitude,)
        self.cutout = cutout
        self._tables: dict[tuple[int, int, torch.device], Tables] = {}
        wrong = [m for m in self.magnitudes if not isinstance(m, Integral) or not 0 <= m < BINS]
        if wrong or not self.magnitudes:
            raise ValueError(expected("magnitude", magnitude, f"0 to {BINS - 1}"))
        at_least(1, operations=operations)

    @property
    def columns(self) -> int:
        """The number of parameters of each image."""
        return self.operations + 2 * self.cutout

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw the parameters of n images.

        Returns an array of shape (n, N) of row numbers, see `row`; with cutout of shape (n, N + 2),
        where the last two columns are the centre of the square.
        """
        high = [len(self.magnitudes) * len(OPERATIONS) * 2] * self.operations
        return rng.integers(0, high + [UNIT] * (2 * self.cutout), (n, self.columns))

    def row(self, operation: str, sign: int = 1, magnitude: int | None = None) -> int:
        """Return the row number of an operation; `sign` is 1 or −1."""
        level = 0 if magnitude is None else self.magnitudes.index(magnitude)
        return (level * len(OPERATIONS) + OPERATIONS.index(operation)) * 2 + (sign < 0)

    def __call__(self, x: Tensor, params: Tensor) -> Tensor:
        """Augment uint8 images (n, channels, H, W) with the parameters returned by `draw`."""
        check_images(tuple(x.shape[1:]), x.dtype)
        tables = self._tables_for(x)
        for k in range(self.operations):
            x = _apply(x, params[:, k], tables)
        return _apply_cutout(x, params[:, self.operations :]) if self.cutout else x

    def _tables_for(self, x: Tensor) -> Tables:
        key = (x.shape[2], x.shape[3], x.device)
        if key not in self._tables:
            self._tables[key] = make_tables(self.magnitudes, *key)
        return self._tables[key]


class RandAugmentTransform(Transform):
    """Augment as another transform does, then RandAugment, then normalise.

    RandAugment is defined on whole grey levels, so floats in [0, 1] are rounded to them first.

    Parameters
    ----------
    base
        The transform that defines crop, flip and normalisation.
    randaugment
        Applied after the augmentation of `base`.
    flip
        False disables the flip of `base`.

    >>> t = RandAugmentTransform(Transform([0.5], [0.5], pad=4, flip=True), RandAugment())
    >>> t.draw(np.random.default_rng(0), 5).shape
    (5, 4)
    """

    random = True

    def __init__(self, base: Transform, randaugment: RandAugment, *, flip: bool = True) -> None:
        super().__init__([0.0], [1.0], pad=base.pad, flip=base.flip and flip)
        self.scale, self.shift = base.scale, base.shift
        self.shape, self.dtype = base.shape, base.dtype
        self.randaugment: RandAugment = randaugment
        if isinstance(base, RandAugmentTransform):
            self.base: Transform = RandAugmentTransform(base.base, base.randaugment, flip=flip)
        else:
            self.base = copy.copy(base)
            self.base.flip = self.flip
        self.columns = base.columns + randaugment.columns

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """Draw the parameters of n images.

        Returns an array whose first columns are those of the base, such as the crop and the flip of
        `Transform.draw`; the others are those of `RandAugment.draw`.
        """
        return np.concatenate([self.base.draw(rng, n), self.randaugment.draw(rng, n)], 1)

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Augment images as the base does and by RandAugment, without normalising them."""
        first = self.base.columns
        if self.base.random:
            x = self.base.augment(x, params[:, :first])
        return self.randaugment(to_grey_levels(x), params[:, first:].long())


def to_grey_levels(x: Tensor) -> Tensor:
    """Return uint8 images unchanged, and floats in [0, 1] rounded to 0 to 255."""
    if x.dtype == torch.uint8:
        return x
    return (x * 255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def check_images(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise a `ValueError` unless samples are uint8 images of shape (channels, height, width)."""
    if dtype != torch.uint8 or len(shape) != 3:
        given = f"{dtype} of shape {shape}"
        wanted = "torch.uint8 of shape (channels, height, width)"
        raise ValueError(expected("a sample for RandAugment", given, wanted))


# ---------------------------------------------------------------------- tables on the host


@dataclass(frozen=True)
class Tables:
    """The operation of each row: everything that does not depend on the pixels."""

    operation: Tensor  # (rows,) index into OPERATIONS
    source: Tensor  # (rows, H·W) index of the source pixel of each pixel; H·W for black
    factor: Tensor  # (rows,) float32 blending factor; 1 for no change
    levels: Tensor  # (rows, 256) uint8 new value of each grey level


def make_tables(magnitudes: Sequence[int], H: int, W: int, device: torch.device) -> Tables:
    """Compute the tables for images of size H × W."""
    rows = [(name, m, sign) for m in magnitudes for name in OPERATIONS for sign in (1, -1)]
    operation = np.array([OPERATIONS.index(name) for name, _, _ in rows])
    source = np.stack([source_pixels(_matrix(*row, H, W), H, W) for row in rows])
    factor = np.array([_factor(*row) for row in rows], np.float32)
    levels = np.stack([_levels(name, m) for name, m, _ in rows])
    return Tables(*(torch.from_numpy(t).to(device) for t in (operation, source, factor, levels)))


def _matrix(name: str, magnitude: int, sign: int, H: int, W: int) -> tuple[float, ...]:
    """Return the affine map of an operation, the identity if it moves no pixels.

    (a, b, c, d, e, f) means that the pixel at (x, y) comes from (ax + by + c, dx + ey + f).
    """
    level = sign * magnitude / (BINS - 1)
    shift = 150 / 331 * level
    angle = -math.radians(30 * level)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    offset = (W - cos * W - sin * H) / 2, (H + sin * W - cos * H) / 2  # the centre does not move
    matrices = {
        "shear-x": (1.0, 0.3 * level, 0.0, 0.0, 1.0, 0.0),
        "shear-y": (1.0, 0.0, 0.0, 0.3 * level, 1.0, 0.0),
        "translate-x": (1.0, 0.0, float(int(shift * W)), 0.0, 1.0, 0.0),
        "translate-y": (1.0, 0.0, 0.0, 0.0, 1.0, float(int(shift * H))),
        "rotate": (cos, sin, offset[0], -sin, cos, offset[1]),
    }
    return matrices.get(name, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def source_pixels(matrix: tuple[float, ...], H: int, W: int) -> NDArray[np.int64]:
    """Return the index of the source pixel of each pixel, of shape (H·W,); H·W if outside.

    Nearest neighbour, in the fixed-point arithmetic of Pillow.

    >>> source_pixels((1, 0, 1, 0, 1, 0), 1, 3).tolist()  # one to the left; 3 is outside
    [1, 2, 3]
    """
    a, b, c, d, e, f = matrix
    y, x = np.mgrid[:H, :W]
    column = _fixed_point(a) * x + _fixed_point(b) * y + _fixed_point(c + (a + b) / 2) >> 16
    row = _fixed_point(d) * x + _fixed_point(e) * y + _fixed_point(f + (d + e) / 2) >> 16
    inside = (column >= 0) & (column < W) & (row >= 0) & (row < H)
    return np.where(inside, row * W + column, H * W).ravel()


def _fixed_point(v: float) -> int:
    return math.floor(v * UNIT + 0.5)


def _factor(name: str, magnitude: int, sign: int) -> float:
    blends = name in ("brightness", "color", "contrast", "sharpness")
    return 1.0 + sign * 0.9 * magnitude / (BINS - 1) if blends else 1.0


def _levels(name: str, magnitude: int) -> NDArray[np.uint8]:
    levels = np.arange(256)
    if name == "posterize":
        dropped = round(magnitude / ((BINS - 1) / 4))
        levels = levels >> dropped << dropped
    if name == "solarize":
        threshold = 255 - 255 * magnitude / (BINS - 1)
        levels = np.where(levels < threshold, levels, 255 - levels)
    return levels.astype(np.uint8)


# ---------------------------------------------------------------------- passes on the device


def _apply(x: Tensor, rows: Tensor, tables: Tables) -> Tensor:
    """Apply one operation to each image: uint8 (n, C, H, W) and row numbers (n,)."""
    operation = tables.operation.index_select(0, rows).view(-1, 1, 1, 1)
    x = _move(x, tables.source.index_select(0, rows))
    x = _blend(x, operation, tables.factor.index_select(0, rows).view(-1, 1, 1, 1))
    return _map(x, operation.squeeze(3), tables.levels.index_select(0, rows))


def _move(x: Tensor, source: Tensor) -> Tensor:
    flat = F.pad(x.flatten(2), (0, 1))  # (n, C, H·W + 1), the last pixel black
    return flat.gather(2, source.unsqueeze(1).expand(-1, x.shape[1], -1)).view(x.shape)


def _blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Return D + factor · (x − D), truncated to uint8 as in Pillow.

    D is black for brightness, the grey image for color, its mean for contrast and a blurred image
    for sharpness.
    """
    x = x.float()
    grey = _grey(x)
    mean = (grey.mean((2, 3), keepdim=True) + 0.5).floor_()
    D = mean * (operation == CONTRAST)
    D = torch.where(operation == COLOR, grey, D)
    D = torch.where(operation == SHARPNESS, _smooth(x), D)
    return x.sub_(D).mul_(factor).add_(D).clamp_(0, 255).to(torch.uint8)


def _grey(x: Tensor) -> Tensor:
    """Return (n, 1, H, W): the luminance of three channels, or the mean of any other number."""
    if x.shape[1] != 3:
        return (x.mean(1, keepdim=True) + 0.5).floor_()
    r, g, b = (x[:, c : c + 1] * w for c, w in enumerate(LUMA))
    return r.add_(g).add_(b).add_(UNIT / 2).div_(UNIT).floor_()


def _smooth(x: Tensor) -> Tensor:
    """Return the mean of 3×3 pixels with weight 5 for the centre; the border is not changed."""
    out = x.clone()
    if min(x.shape[2:]) > 2:
        rows = (x[:, :, :-2] + x[:, :, 1:-1]).add_(x[:, :, 2:])
        inner = out[:, :, 1:-1, 1:-1].mul_(4)
        for k in range(3):
            inner.add_(rows[..., k : k + inner.shape[3]])
        inner.div_(13).add_(0.5).floor_()
    return out


def _map(x: Tensor, operation: Tensor, levels: Tensor) -> Tensor:
    """Replace grey levels by a lookup table per image and channel."""
    flat = x.flatten(2)  # (n, C, H·W)
    low, high = flat.amin(2, keepdim=True).long(), flat.amax(2, keepdim=True).long()
    index = flat.long()
    lookup = levels.unsqueeze(1).expand(-1, flat.shape[1], -1)  # (n, C, 256)
    lookup = torch.where(operation == AUTOCONTRAST, _stretched(low, high), lookup)
    lookup = torch.where(operation == EQUALIZE, _equalized(index, high), lookup)
    return lookup.gather(2, index).view(x.shape)


def _stretched(low: Tensor, high: Tensor) -> Tensor:
    """Return lookup tables (n, C, 256) that map the darkest level to 0, the brightest to 255."""
    ramp = torch.arange(256, device=low.device)
    span = (high - low).clamp(min=1).double()  # double precision, as in Pillow
    scale = torch.full_like(span, 255.0) / span  # `255.0 / span` would round twice
    stretched = (ramp * scale).sub_(low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, ramp.to(torch.uint8))


def _equalized(index: Tensor, high: Tensor) -> Tensor:
    """Return lookup tables (n, C, 256) that equalise the histograms."""
    n, C, size = index.shape
    counts = index.new_zeros((n, C, 256), dtype=torch.float32)  # exact up to 2²⁴ pixels
    counts.scatter_add_(2, index, counts.new_ones(1).expand(index.shape))
    step = (size - counts.gather(2, high)).div_(255, rounding_mode="floor")
    below = counts.cumsum(2).sub_(counts).add_((step / 2).floor_())
    equal = below.div_(step.clamp(min=1)).clamp_(max=255).to(torch.uint8)
    return torch.where(step > 0, equal, torch.arange(256, device=index.device).to(torch.uint8))


def _apply_cutout(x: Tensor, centre: Tensor) -> Tensor:
    """Fill a square of half the side with grey; the part outside the image is cut off."""
    H, W = x.shape[2:]
    rows = _covered(H, centre[:, :1]).view(-1, 1, H, 1)
    columns = _covered(W, centre[:, 1:]).view(-1, 1, 1, W)
    return x.masked_fill(rows & columns, GREY)


def _covered(side: int, centre: Tensor) -> Tensor:
    """Return a mask (n, side) of the rows or columns that a cutout covers."""
    start = centre * side // UNIT - side // 4
    position = torch.arange(side, device=centre.device)
    return (position >= start) & (position < start + side // 2)
