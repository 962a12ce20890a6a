"""Random resized crops of whole batches, as in torchvision.

Each image has its own box, which is resized to the size of the image by bilinear interpolation with
half-pixel centres, using only pixels of the box. A box is never larger than the image, so no
antialiasing is needed. A flip mirrors the coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

RATIO = 3 / 4, 4 / 3
"""The range of the aspect ratio of a box, width / height."""

TRIES = 10
"""Number of random boxes to try before the largest central box is used."""

COLUMNS = 6
"""Parameters of each image, see `grid_columns`."""

Floats = NDArray[np.float64]


def draw_boxes(
    rng: np.random.Generator, n: int, size: tuple[int, int], scale: tuple[float, float]
) -> NDArray[np.int64]:
    """Draw n boxes (n, 4) in images of a size (H, W): top, left, height and width.

    Relative area (in `scale`) and log aspect ratio (in `RATIO`) are uniform. The first of `TRIES`
    boxes that fits into the image is used.

    >>> draw_boxes(np.random.default_rng(0), 2, (32, 32), (0.2, 1.0)).tolist()
    [[1, 5, 31, 24], [1, 0, 28, 31]]
    """
    H, W = size
    area = H * W * rng.uniform(*scale, (n, TRIES))
    ratio = np.exp(rng.uniform(np.log(RATIO[0]), np.log(RATIO[1]), (n, TRIES)))
    heights, widths = (np.rint(np.sqrt(v)).astype(np.int64) for v in (area / ratio, area * ratio))
    fits = (heights > 0) & (heights <= H) & (widths > 0) & (widths <= W)
    chosen, none = (np.arange(n), fits.argmax(1)), ~fits.any(axis=1)
    central = _central(H, W)
    height = np.where(none, central[0], heights[chosen])
    width = np.where(none, central[1], widths[chosen])
    room = np.stack([H - height, W - width])
    places = np.where(none, room // 2, np.floor(rng.random((2, n)) * (room + 1)))
    return np.stack([*places.astype(np.int64), height, width], 1)


def _central(H: int, W: int) -> tuple[int, int]:
    """Return height and width of the largest box with an allowed aspect ratio."""
    (low, high), ratio = RATIO, W / H
    if ratio < low:
        return round(W / low), W
    return (H, round(H * high)) if ratio > high else (H, W)


def grid_columns(
    boxes: NDArray[np.int64], flip: NDArray[np.bool_], size: tuple[int, int]
) -> Floats:
    """Return parameters (n, 6): centre, half side and inner edge of a box, for columns and rows.

    Image coordinates are −1 to 1. A negative half side of the columns is a flip. Pixels beyond the
    inner edge, relative to the half side, have the value at the edge.
    """
    H, W = size
    top, left, height, width = boxes.T.astype(np.float64)
    centre_x, centre_y = (2 * left + width) / W - 1, (2 * top + height) / H - 1
    half_x, half_y = np.where(flip, -1.0, 1.0) * width / W, height / H
    return np.stack([centre_x, half_x, 1 - 1 / width, centre_y, half_y, 1 - 1 / height], 1)


def base_grid(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the centres of the pixels, from −1 to 1: of the columns (W,) and the rows (H,)."""
    H, W = size
    x, y = ((torch.arange(side, dtype=torch.float64) * 2 + 1) / side - 1 for side in (W, H))
    return x.float(), y.float()


def resized_crop(pixels: Tensor, params: Tensor, grid: tuple[Tensor, Tensor]) -> Tensor:
    """Crop, resize and flip float images (n, channels, H, W); `params` as in `grid_columns`."""
    n, _, H, W = pixels.shape
    centre_x, half_x, edge_x, centre_y, half_y, edge_y = (
        params.to(pixels.dtype).unsqueeze(2).unbind(1)
    )
    x = torch.addcmul(centre_x, half_x, torch.clamp(grid[0], -edge_x, edge_x))  # (n, W)
    y = torch.addcmul(centre_y, half_y, torch.clamp(grid[1], -edge_y, edge_y))  # (n, H)
    both = torch.stack([x.unsqueeze(1).expand(n, H, W), y.unsqueeze(2).expand(n, H, W)], 3)
    return F.grid_sample(pixels, both, mode="bilinear", padding_mode="border", align_corners=False)
