"""Any map-style `torch.utils.data.Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dualcba.data.dataset import Dataset, IntArray, from_arrays, plain_tensor
from dualcba.data.progress import progress_enabled
from dualcba.data.readers.holdout import hold_out
from dualcba.data.readers.images import image_to_array
from dualcba.data.readers.npz import channels_first
from dualcba.errors import expected


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
    """Make a dataset from a map-style torch dataset of `(sample, label)` pairs.

    Samples are tensors, Pillow images or NumPy arrays. Tensors keep their layout; images and arrays
    of images are converted to channels first. Each sample is read once, so a random transform of
    the torch dataset would be applied only once; use `pad` and `flip` for augmentation instead.

    Parameters
    ----------
    dataset, test
        The training set and the test set: objects with `__len__` and `__getitem__`.
    holdout, seed
        Without `test`: the fraction of each class that becomes the test set, and the seed of this
        split.
    num_classes, mean, std, pad, flip, name
        As for `from_arrays`.
    show
        Whether to show a progress bar; by default if stderr is a terminal.

    >>> pairs = torch.utils.data.TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 2)
    >>> data = from_torch(pairs, holdout=0.3)
    >>> data.input_shape, len(data.train_x), len(data.test_x)
    ((3, 8, 8), 14, 6)
    """
    x, y = _read(dataset, "train", show)
    if test is None:
        train_rows, test_rows = hold_out(y, holdout, seed)
        x, y, test_x, test_y = x[train_rows], y[train_rows], x[test_rows], y[test_rows]
    else:
        test_x, test_y = _read(test, "test", show)
    classes = num_classes or int(max(y.max(), test_y.max())) + 1
    return from_arrays(
        x, y, test_x, test_y, num_classes=classes, mean=mean, std=std, pad=pad, flip=flip, name=name
    )


def _read(dataset: Any, part: str, show: bool | None) -> tuple[Tensor, IntArray]:
    """Return all samples and labels of a dataset; error messages name the part."""
    count = _length(dataset, part)
    samples, labels = torch.empty(0), np.empty(count, np.int64)
    rows = track(range(count), f"read {part}", console=Console(stderr=True),
                 disable=not progress_enabled(show))  # fmt: skip
    for i in rows:
        x, labels[i] = _split_pair(dataset[i], f"{part} sample {i}")
        if i == 0:
            samples = torch.empty((count, *x.shape), dtype=x.dtype)
        if x.shape != samples.shape[1:] or x.dtype != samples.dtype:
            wanted = f"{tuple(samples.shape[1:])} of {samples.dtype}, as the first"
            given = f"{tuple(x.shape)} of {x.dtype}"
            raise ValueError(f"{part} sample {i} has the shape {given}, expected {wanted}")
        samples[i] = x
    return samples, labels


def _length(dataset: Any, part: str) -> int:
    map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not map_style or isinstance(dataset, torch.utils.data.IterableDataset):
        kind = type(dataset).__name__
        raise ValueError(expected(f"{part} dataset", kind, "one with a length and an index"))
    if not len(dataset):
        raise ValueError(f"the {part} dataset is empty, expected at least one sample")
    return len(dataset)


def _split_pair(item: Any, name: str) -> tuple[Tensor, int]:
    """Return sample and label of an item of a dataset; error messages use `name` for the item."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"{name} is a {type(item).__name__}, expected a pair of x and y")
    return _to_tensor(item[0], name), _to_int(item[1], name)


def _to_tensor(x: Any, name: str) -> Tensor:
    if isinstance(x, Image.Image):
        x = torch.from_numpy(image_to_array(x).copy())
    elif isinstance(x, np.ndarray) and x.dtype.kind in "buif":
        x = torch.from_numpy(channels_first(x[None])[0].astype(x.dtype.newbyteorder("=")))
    if not isinstance(x, Tensor) or x.dim() == 0:
        wanted = "a tensor, a Pillow image or an array of numbers"
        raise ValueError(expected(f"type of {name}", type(x).__name__, wanted))
    plain = plain_tensor(x, name).cpu()
    if plain.is_complex():
        raise ValueError(expected(f"dtype of {name}", str(plain.dtype), "real numbers"))
    return plain if plain.dtype == torch.uint8 else plain.float()


def _to_int(y: Any, name: str) -> int:
    y = plain_tensor(y, f"label of {name}") if isinstance(y, Tensor) else y
    scalar = isinstance(y, np.generic) or (isinstance(y, Tensor) and y.numel() == 1)
    value = y.item() if scalar else y
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(expected(f"label of {name}", y, "a whole number"))
    return value
