"""Arrays in an `.npz` file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, count_classes, from_arrays
from dualcba.data.readers.folder import hold_out

Array = NDArray[Any]
SPLIT = (("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))
WHOLE = (("x", "y"), *(names[:2] for names in SPLIT))


def channels_first(x: Array) -> Array:
    """Images (n, H, W, 1 or 3) → (n, channels, H, W); bytes (n, H, W) → (n, 1, H, W).

    >>> channels_first(np.zeros((5, 8, 9, 3))).shape, channels_first(np.zeros((5, 3, 8, 3))).shape
    ((5, 3, 8, 9), (5, 3, 8, 3))
    """
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    return np.ascontiguousarray(x)


def from_npz(
    path: str | Path,
    *,
    holdout: float = 0.2,
    seed: int = 0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int = 0,
    flip: bool = False,
    name: str | None = None,
) -> Dataset:
    """A dataset from `train_x`, `train_y`, `test_x` and `test_y`, or `x` and `y`, of a file.

    Parameters
    ----------
    path
        The file. Nothing in it is run; arrays of Python objects are refused.
    holdout, seed
        Where there is no test set: the fraction of each class that becomes one, and its seed.
    mean, std, pad, flip
        As for `from_arrays`.
    """
    path = Path(path)
    train_x, train_y, *test = _read(path)
    if not test:
        train, held = hold_out(_labels(train_y, path), holdout, seed)
        test = [train_x[held], train_y[held]]
        train_x, train_y = train_x[train], train_y[train]
    return from_arrays(
        train_x, train_y, *test, num_classes=_classes(train_y, test[1]), mean=mean, std=std,
        pad=pad, flip=flip, name=name or path.stem,
    )  # fmt: skip


def _read(path: Path) -> list[Array]:
    """Samples and labels: for training and for testing, or for both together."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected an .npz file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file, expected one as numpy.savez writes it")
    try:
        with np.load(path, allow_pickle=False) as file:
            names = _names(path, file.files)
            arrays = [_array(path, name, file) for name in names]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    arrays[::2] = [channels_first(x) for x in arrays[::2]]
    for x, y, where in zip(arrays[::2], arrays[1::2], names[::2], strict=True):
        if y.ndim != 1 or len(x) != len(y):
            raise ValueError(f"{path}: {where} has the shape {x.shape}, its labels {y.shape}, "
                             "expected one label per sample")  # fmt: skip
    return arrays


def _names(path: Path, found: list[str]) -> tuple[str, ...]:
    for names in (*SPLIT, *WHOLE):
        if all(name in found for name in names):
            return names
    wanted = "train_x, train_y, test_x, test_y, or x, y"
    raise ValueError(f"{path} holds {', '.join(found) or 'nothing'}, expected {wanted}")


def _array(path: Path, name: str, file: Any) -> Array:
    try:
        array = file[name]
    except ValueError as error:  # a pickle inside, or a damaged header
        raise ValueError(f"{path}: {name} cannot be read, expected numbers: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif" or array.ndim == 0:
        raise ValueError(f"{path}: {name} is no array of numbers, expected one")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _labels(y: Array, path: Path) -> NDArray[np.int64]:
    if y.dtype.kind not in "ui":
        raise ValueError(f"{path}: the labels are {y.dtype}, expected whole numbers")
    return y.astype(np.int64)


def _classes(*labels: Array) -> int | None:
    """One more than the largest label of all; none where `from_arrays` will say what is wrong."""
    highest = [int(y.max()) for y in labels if y.size and y.dtype.kind in "ui"]
    samples = sum(len(y) for y in labels)
    return count_classes(max(highest), samples) if len(highest) == len(labels) else None
