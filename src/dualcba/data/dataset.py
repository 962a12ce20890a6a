"""A dataset in memory: raw samples and labels, and how to normalise and augment them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from dualcba.data.transforms import Transform
from dualcba.errors import expected


@dataclass(frozen=True)
class Dataset:
    """Train and test samples, raw: uint8 images (n, channels, H, W) or float32 arrays (n, ...)."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: Sequence[float]
    std: Sequence[float]
    pad: int = 0
    flip: bool = False
    mapped: bool = False
    """Whether the training samples lie on the disk, memory-mapped."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def transform(self) -> Transform:
        """Its augmentation and normalisation."""
        return Transform(self.mean, self.std, pad=self.pad, flip=self.flip)


def check_labels(
    y: ArrayLike | Tensor, length: int, num_classes: int | None, where: str, low: int = 0
) -> Tensor:
    """Labels as int64, or a `ValueError` that names the first bad one."""
    try:
        labels = torch.as_tensor(_plain(y) if isinstance(y, np.ndarray) else y)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{where} y cannot be read as labels, expected whole numbers") from None
    if labels.dim() != 1 or len(labels) != length:
        raise ValueError(expected(f"shape of {where} y", tuple(labels.shape), f"({length},)"))
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(expected(f"dtype of {where} y", str(labels.dtype), "whole numbers"))
    labels = labels.long()
    high = num_classes if num_classes is not None else torch.iinfo(torch.long).max
    bad = (labels < low) | (labels >= high)
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        wanted = (
            "a label of at least 0" if num_classes is None else f"a label from {low} to {high - 1}"
        )
        raise ValueError(expected(f"{where} y[{i}]", int(labels[i]), wanted))
    return labels


def count_classes(highest: int, samples: int) -> int:
    """How many classes labels from 0 to `highest` have, each of which needs a sample.

    >>> count_classes(2**40, 100)
    Traceback (most recent call last):
    ...
    ValueError: highest label is 1099511627776, expected classes counted from 0, for 100 samples
    """
    if highest >= samples:
        wanted = f"classes counted from 0, for {samples} samples"
        raise ValueError(expected("highest label", highest, wanted))
    return highest + 1


def check_samples(
    x: ArrayLike | Tensor, where: str, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Samples as a uint8 or float32 tensor, or a `ValueError` that says what is wrong."""
    samples = x.detach() if isinstance(x, Tensor) else torch.from_numpy(_numeric(x, where))
    if samples.is_complex():
        raise ValueError(expected(f"dtype of {where} x", str(samples.dtype), "real numbers"))
    if samples.dim() < 2 or samples.numel() == 0:
        wanted = "(n, ...) with n of at least 1"
        raise ValueError(expected(f"shape of {where} x", tuple(samples.shape), wanted))
    if shape is not None and tuple(samples.shape[1:]) != shape:
        raise ValueError(
            expected(f"shape of one sample of {where} x", tuple(samples.shape[1:]), str(shape))
        )
    if samples.dtype != torch.uint8:
        samples = samples.float()
        finite = samples.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            i = int((~finite).nonzero()[0])
            raise ValueError(
                f"{where} x[{i}] holds a NaN or an infinite value, expected finite numbers"
            )
    return samples


def _numeric(x: ArrayLike, where: str) -> np.ndarray:
    try:
        array = np.asarray(x)
    except ValueError:
        raise ValueError(f"{where} x is ragged, expected samples of one shape") from None
    if array.dtype.kind not in "buif":
        raise ValueError(expected(f"dtype of {where} x", str(array.dtype), "numbers"))
    return _plain(array)


def _plain(array: np.ndarray) -> np.ndarray:
    """As torch takes it: no negative strides, bytes in this machine's order."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def from_arrays(
    train_x: ArrayLike | Tensor,
    train_y: ArrayLike | Tensor,
    test_x: ArrayLike | Tensor,
    test_y: ArrayLike | Tensor,
    *,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int = 0,
    flip: bool = False,
    name: str = "arrays",
) -> Dataset:
    """A dataset from plain arrays or tensors: images (n, channels, H, W) or vectors (n, d).

    Without `mean` and `std`, uint8 images are normalised by their own channel statistics, floats by
    their overall ones.

    >>> x, y = np.arange(12.0).reshape(6, 2), [0, 1, 2] * 2
    >>> data = from_arrays(x, y, x, y)
    >>> data.num_classes, data.input_shape
    (3, (2,))
    """
    x = check_samples(train_x, "train")
    y = check_labels(train_y, len(x), num_classes, "train")
    classes = num_classes if num_classes is not None else count_classes(int(y.max()), len(y))
    tx = check_samples(test_x, "test", tuple(x.shape[1:]))
    if tx.dtype != x.dtype:
        raise ValueError(expected("dtype of test x", str(tx.dtype), f"{x.dtype}, as in training"))
    ty = check_labels(test_y, len(tx), classes, "test")
    if mean is None or std is None:
        mean, std = statistics(x)
    check_transform(tuple(x.shape[1:]), mean, std, pad, flip)
    mapped = isinstance(train_x, np.memmap)
    return Dataset(name, x, y, tx, ty, classes, mean, std, pad, flip, mapped)


def check_transform(
    shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float], pad: int, flip: bool
) -> None:
    """Raise unless samples of this shape can be normalised and augmented so."""
    for field, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, shape[0]):
            wanted = f"1 or {shape[0]} numbers, one per channel"
            raise ValueError(expected(field, list(values), wanted))
    if min(std) <= 0:
        raise ValueError(expected("std", list(std), "numbers above 0"))
    if pad < 0:
        raise ValueError(expected("pad", pad, "at least 0"))
    if (pad or flip) and len(shape) != 3:
        wanted = "images (channels, height, width) for a crop or a flip"
        raise ValueError(expected("shape of one sample", shape, wanted))


def statistics(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation: per channel for uint8 images, one number for other arrays."""
    if x.dtype == torch.uint8 and x.dim() == 4:
        values = x.transpose(0, 1).flatten(1).double() / 255
    else:
        values = x.double().flatten()[None] / (255 if x.dtype == torch.uint8 else 1)
    std = values.std(1).clamp(min=1e-6)
    return values.mean(1).tolist(), std.tolist()
