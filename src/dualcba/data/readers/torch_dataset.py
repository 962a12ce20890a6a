"""Any map-style `torch.utils.data.Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.disk import visible
from dualcba.data.readers.folder import hold_out
from dualcba.data.readers.images import pixels
from dualcba.data.readers.npz import channels_first
from dualcba.errors import expected

Rows = NDArray[np.int64]


def from_torch(
    dataset: Any,
    test: Any = None,
    *,
    holdout: float = 0.2,
    seed: int = 0,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int = 0,
    flip: bool = False,
    name: str = "torch",
    show: bool | None = None,
) -> Dataset:
    """A dataset from pairs of a sample and a label: tensors, Pillow images or arrays.

    Each sample is read once, so random transforms of the dataset are drawn once: leave augmentation
    to `pad` and `flip`. Tensors stay as they are; images and arrays of images get their channels
    first.

    Parameters
    ----------
    dataset, test
        Map-style: they have a length and give `(x, y)` for each index.
    holdout, seed
        Without `test`: the fraction of each class that becomes the test set, and its seed.
    num_classes, mean, std, pad, flip, name
        As for `from_arrays`.
    show
        Whether to show a progress bar; by default where stderr is a terminal.

    >>> pairs = torch.utils.data.TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 2)
    >>> data = from_torch(pairs, holdout=0.3)
    >>> data.input_shape, len(data.train_x), len(data.test_x)
    ((3, 8, 8), 14, 6)
    """
    x, y = _read(dataset, "train", show)
    if test is None:
        train, held = hold_out(y, holdout, seed)
        x, y, test_x, test_y = x[train], y[train], x[held], y[held]
    else:
        test_x, test_y = _read(test, "test", show)
    classes = num_classes or int(max(y.max(), test_y.max())) + 1
    return from_arrays(
        x, y, test_x, test_y, num_classes=classes, mean=mean, std=std, pad=pad, flip=flip, name=name
    )


def _read(dataset: Any, where: str, show: bool | None) -> tuple[Tensor, Rows]:
    """All samples and labels of a dataset."""
    count = _length(dataset, where)
    samples, labels = torch.empty(0), np.empty(count, np.int64)
    rows = track(range(count), f"read {where}", console=Console(stderr=True),
                 disable=not visible(show))  # fmt: skip
    for i in rows:
        x, labels[i] = _pair(dataset[i], f"{where} sample {i}")
        if i == 0:
            samples = torch.empty((count, *x.shape), dtype=x.dtype)
        if x.shape != samples.shape[1:] or x.dtype != samples.dtype:
            wanted = f"{tuple(samples.shape[1:])} of {samples.dtype}, as the first"
            given = f"{tuple(x.shape)} of {x.dtype}"
            raise ValueError(f"{where} sample {i} has the shape {given}, expected {wanted}")
        samples[i] = x
    return samples, labels


def _length(dataset: Any, where: str) -> int:
    mapped = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not mapped or isinstance(dataset, torch.utils.data.IterableDataset):
        kind = type(dataset).__name__
        raise ValueError(expected(f"{where} dataset", kind, "one with a length and an index"))
    if not len(dataset):
        raise ValueError(f"the {where} dataset is empty, expected at least one sample")
    return len(dataset)


def _pair(item: Any, where: str) -> tuple[Tensor, int]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"{where} is a {type(item).__name__}, expected a pair of x and y")
    return _sample(item[0], where), _label(item[1], where)


def _sample(x: Any, where: str) -> Tensor:
    if isinstance(x, Image.Image):
        x = torch.from_numpy(pixels(x).copy())
    elif isinstance(x, np.ndarray) and x.dtype.kind in "buif":
        x = torch.from_numpy(channels_first(x[None])[0].astype(x.dtype.newbyteorder("=")))
    if not isinstance(x, Tensor) or x.dim() == 0:
        wanted = "a tensor, a Pillow image or an array of numbers"
        raise ValueError(expected(f"type of {where}", type(x).__name__, wanted))
    return x.detach().cpu() if x.dtype == torch.uint8 else x.detach().cpu().float()


def _label(y: Any, where: str) -> int:
    single = isinstance(y, np.generic) or (isinstance(y, Tensor) and y.numel() == 1)
    value = y.item() if single else y
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(expected(f"label of {where}", y, "a whole number"))
    return value
