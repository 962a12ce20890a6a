"""Augmentations by name, and views of samples for methods.

A view is a transform. `Method.make_views` returns the views of a method, made from the learner's
transform by the functions of this module; the transform itself is a view, too: another draw of the
training augmentation. Each view draws its own random numbers. A view with a `source` starts from
the pixels of an earlier view instead of the sample.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data import colour, resized_crop
from dualcba.data.colour import ColourJitter
from dualcba.data.randaugment import RandAugment, RandAugmentTransform, check_images
from dualcba.data.transforms import Transform, Unchanged
from dualcba.errors import expected
from dualcba.kernels import augment as kernels

CROP_AREA = 0.2, 1.0
"""The range of the area of a crop of `full` or `strong`, relative to the image."""


def choose_augmentation(
    transform: Transform, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Transform:
    """Return the transform of the option `augmentation`, for samples of this shape and dtype."""
    base = copy.copy(transform)
    base.shape, base.dtype = shape, dtype
    if name == "partial":
        return base
    if name == "none":
        return plain(base)
    _check_samples(name, shape, dtype)
    if name == "full":
        return FullAugmentation(base)
    return RandAugmentTransform(ResizedCrop(base, CROP_AREA), RandAugment(2, 10, cutout=True))


def is_colour(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether samples of this shape and dtype are colour images, as `full` requires."""
    return len(shape) == 3 and shape[0] == 3 and dtype == torch.uint8


def _check_samples(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images = len(shape) == 3 and dtype == torch.uint8
    if not images or (name == "full" and not is_colour(shape, dtype)):
        given = f"{name!r} for {dtype} samples of shape {shape}"
        others = "'none', 'partial' or 'strong'" if images else "'none' or 'partial'"
        channels = "3" if name == "full" else "channels"
        wanted = f"{others} unless samples are torch.uint8 of shape ({channels}, height, width)"
        raise ValueError(f"augmentation is {given}, expected {wanted}")


def plain(transform: Transform) -> Transform:
    """Return a transform without augmentation: the view of the raw samples."""
    made = Unchanged() if isinstance(transform, Unchanged) else Transform([0.0], [1.0])
    return _inherit(made, transform)


def crop_and_flip(
    transform: Transform, scale: tuple[float, float], *, source: str = ""
) -> Transform:
    """Return a random resized crop and a flip; `scale` is the range of the relative area."""
    view = ResizedCrop(transform, scale)
    view.source = source
    return view


def randaugment(
    transform: Transform, operations: int, magnitude: int, *, source: str = ""
) -> Transform:
    """Return RandAugment, of the samples or of the pixels of an earlier view."""
    check_images(transform.shape, transform.dtype)
    view = RandAugmentTransform(plain(transform), RandAugment(operations, magnitude))
    view.source = source
    return view


def cutmix(transform: Transform) -> Transform:
    """Return CutMix of raw images with others of the same step."""
    if len(transform.shape) != 3:
        wanted = "(channels, height, width) for CutMix"
        raise ValueError(expected("shape of one sample", transform.shape, wanted))
    return _inherit(CutMix(), transform)


class CutMix(Transform):
    """CutMix (Yun et al., ICCV 2019), with another rectangle for each image.

    Area and centre of the rectangle are uniform; the part outside the image is cut off.


    >>> view = cutmix(choose_augmentation(Transform([0.0], [1.0]), "none", (1, 2, 2), torch.uint8))
    >>> x = torch.tensor([[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]])
    >>> view.augment(x, torch.tensor([[0.9, 0, 1, 0, 2], [0.1, 0, 0, 0, 0]])).flatten(1).tolist()
    [[5, 6, 3, 4], [5, 6, 7, 8]]
    """

    columns = 5
    random = True

    def __init__(self) -> None:
        super().__init__([0.0], [1.0])

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw the source image of each rectangle, in [0, 1), and its edges: rows, columns."""
        other, area, *centre = rng.random((4, n))
        sizes = np.array(self.shape[1:])
        half = np.sqrt(area)[:, None] * sizes / 2
        middle = np.stack(centre, 1) * sizes
        low, high = np.maximum(middle - half, 0).round(), np.minimum(middle + half, sizes).round()
        return np.stack([other, low[:, 0], high[:, 0], low[:, 1], high[:, 1]], 1)

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Mix images without normalising them."""
        other, top, bottom, left, right = params.unbind(1)
        row, column = (torch.arange(size, device=x.device) for size in x.shape[2:])
        inside = (row >= top[:, None]) & (row < bottom[:, None])
        across = (column >= left[:, None]) & (column < right[:, None])
        mask = inside[:, None, :, None] & across[:, None, None, :]
        return torch.where(mask, x[(other * len(x)).long()], x)


class ResizedCrop(Transform):
    """A random resized crop and a horizontal flip.

    uint8 images become floats in [0, 1], so that they are normalised in the same way.

    Parameters
    ----------
    base
        The transform that defines the normalisation; its `shape` is that of the samples.
    area
        The range of the area of a crop, relative to the image.

    >>> base = choose_augmentation(Transform([0.5], [0.5]), "none", (1, 8, 8), torch.uint8)
    >>> t = ResizedCrop(base, (0.6, 1.0))
    >>> params = torch.from_numpy(t.draw(np.random.default_rng(0), 2))
    >>> t(torch.full((2, 1, 8, 8), 255, dtype=torch.uint8), params).unique().tolist()
    [1.0]
    """

    grid_x: Tensor
    grid_y: Tensor
    columns = resized_crop.COLUMNS
    random = True

    def __init__(self, base: Transform, area: tuple[float, float]) -> None:
        super().__init__([0.0], [1.0], flip=True)
        if len(base.shape) != 3:
            wanted = "(channels, height, width) for a resized crop"
            raise ValueError(expected("shape of one sample", base.shape, wanted))
        _inherit(self, base)
        self.area = area
        for name, values in zip("xy", resized_crop.base_grid(self.size), strict=True):
            self.register_buffer(f"grid_{name}", values.to(self.scale), persistent=False)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.shape[1], self.shape[2]

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw the parameters (n, 6) of n images, see `resized_crop.grid_columns`."""
        boxes = resized_crop.draw_boxes(rng, n, self.size, self.area)
        flip = (rng.random(n) < 0.5) & self.flip
        return resized_crop.grid_columns(boxes, flip, self.size)

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Crop, resize and flip images without normalising them."""
        if self._fused(x):
            return kernels.augment(x, params, colours=False)
        pixels = x * (1 / 255) if x.dtype == torch.uint8 else x
        return resized_crop.resized_crop(pixels, params, (self.grid_x, self.grid_y))

    def _fused(self, x: Tensor) -> bool:
        """Return whether the fused kernel can augment these images."""
        return self.scale.dtype == torch.float32 and kernels.applies(x)


class FullAugmentation(ResizedCrop):
    """A random resized crop, a flip, colour jitter and greyscale of uint8 colour images.

    The definitions are torchvision's, on floats in [0, 1]: crops with a
    relative area of 0.2 to 1, jitter (0.4, 0.4, 0.4, 0.1) with probability 0.8 in a random order
    for each image, and greyscale with probability 0.2.
    """

    columns = resized_crop.COLUMNS + colour.COLUMNS

    def __init__(self, base: Transform) -> None:
        super().__init__(base, CROP_AREA)
        self.jitter = ColourJitter()

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw the parameters (n, 28) of n images: crop and flip, then the colours."""
        return np.concatenate([super().draw(rng, n), self.jitter.draw(rng, n)], 1)

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        """Augment images without normalising them."""
        if self._fused(x):
            return kernels.augment(x, params, colours=True)
        first = resized_crop.COLUMNS
        return colour.adjust_colours(super().augment(x, params[:, :first]), params[:, first:])


def _inherit(view: Transform, base: Transform) -> Transform:
    """Copy normalisation, shape and dtype of samples from another transform."""
    view.scale, view.shift = base.scale, base.shift
    view.shape, view.dtype = base.shape, base.dtype
    return view
