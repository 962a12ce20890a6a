"""Arrays in an `.npz` file."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, IntArray, from_arrays
from dualcba.data.readers.holdout import hold_out
from dualcba.errors import expected, reason

Array = NDArray[Any]
NAMES = (  # names of the arrays in a file, in order of preference
    ("train_x", "train_y", "test_x", "test_y"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y"),
    ("train_x", "train_y"),
    ("x_train", "y_train"),
)
HEADER = re.compile(
    r"\{'descr': *'(?P<dtype>\|b1|[|<>=][iu][1248]|[<>=]f[248]|[<>=]U\d{1,6}|\|S\d{1,6})', *"
    r"'fortran_order': *(?P<fortran>True|False), *"
    r"'shape': *\((?P<shape>(\d{1,18}L?(, *|(?=\))))*)\),? *\} *\n?"
)
"""The header of an `.npy` file with numbers or texts, as written by NumPy."""

LONGEST_HEADER = 10_000
MOST_AXES = 32
CHUNK = 1 << 24  # bytes read at a time
DEFLATE_RATIO = 1032  # largest ratio of uncompressed to compressed bytes


def channels_first(x: Array) -> Array:
    """Convert images to the layout (n, channels, H, W), as a contiguous array.

    Arrays (n, H, W, 1 or 3) are transposed, unless axis 1 is of size 1 or 3; uint8 arrays (n, H, W)
    get a channel axis; other arrays keep their shape.

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
    """Make a dataset from the arrays of an `.npz` file.

    The arrays are `train_x`, `train_y`, `test_x` and `test_y`, or `x` and `y`; `x_train` and so on
    are accepted too. Labels are integers or texts. The classes are the labels that occur, in
    ascending order; gaps between labels are allowed. `class_names` of the dataset has the labels as
    text.

    Parameters
    ----------
    path
        The file. Arrays of Python objects are refused, so that loading runs no code.
    holdout, seed
        If there is no test set: the fraction of each class that becomes the test set, and the seed
        of this split.
    mean, std, pad, flip
        As for `from_arrays`.
    name
        The name of the dataset; by default that of the file.
    """
    path = Path(path)
    train_x, train_y, *test = _read(path)
    classes, (train_y, *test[1:]) = _consecutive(path, [train_y, *test[1:]])
    if not test:
        train_rows, test_rows = hold_out(train_y, holdout, seed, classes)
        test = [train_x[test_rows], train_y[test_rows]]
        train_x, train_y = train_x[train_rows], train_y[train_rows]
    data = from_arrays(
        train_x, train_y, *test, num_classes=len(classes) or None, mean=mean, std=std, pad=pad,
        flip=flip, name=name or path.stem,
    )  # fmt: skip
    return replace(data, class_names=tuple(map(str, classes)))


def _read(path: Path) -> list[Array]:
    """Return training samples and labels, followed by test samples and labels if there are any."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected an .npz file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file, expected one as numpy.savez writes it")
    try:
        with zipfile.ZipFile(path) as file:
            found = {m.filename.removesuffix(".npy"): m for m in file.infolist()}
            names = _array_names(path, list(found))
            arrays = [_read_array(path, name, file, found[name]) for name in names]
    except Exception as error:  # a damaged archive may raise anything
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    arrays[::2] = [channels_first(x) for x in arrays[::2]]
    for x, y, x_name in zip(arrays[::2], arrays[1::2], names[::2], strict=True):
        if y.ndim != 1 or len(x) != len(y):
            raise ValueError(f"{path}: {x_name} has the shape {x.shape}, its labels {y.shape}, "
                             "expected one label per sample")  # fmt: skip
    return arrays


def _array_names(path: Path, found: list[str]) -> tuple[str, ...]:
    for names in NAMES:
        if all(name in found for name in names):
            return names
    wanted = "train_x, train_y, test_x, test_y, or x, y"
    shown = ", ".join(found[:10]) or "no arrays"
    raise ValueError(f"{path} holds {' '.join(shown.split())}, expected {wanted}")


def _read_array(path: Path, name: str, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read one array; unlike NumPy's reader, check the size in the header before allocating."""
    with file.open(member) as content:
        dtype, fortran, shape = _read_header(content, f"{path}: {name}")
        size = math.prod(shape) * dtype.itemsize
        packed = min(member.compress_size, path.stat().st_size)
        if size != member.file_size - content.tell() or size > packed * DEFLATE_RATIO:
            given = f"{member.file_size - content.tell()} bytes"
            raise ValueError(f"{path}: {name} holds {given}, expected {dtype} of shape {shape}")
        data = bytearray(size)
        for k in range(0, size, CHUNK):
            part = content.read(min(CHUNK, size - k))
            if len(part) < min(CHUNK, size - k):
                raise EOFError(f"{name} ends too early")
            data[k : k + len(part)] = part
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _read_header(file: IO[bytes], name: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """Return dtype, order and shape from the header of an `.npy` file."""
    magic = file.read(8)
    width = 2 if magic[6:7] == b"\1" else 4
    length = int.from_bytes(file.read(width), "little")
    known = magic[:6] == np.lib.format.MAGIC_PREFIX and length <= LONGEST_HEADER
    match = HEADER.fullmatch(file.read(length).decode("latin1")) if known else None
    shape = () if match is None else tuple(int(n) for n in re.findall(r"\d+", match["shape"]))
    if match is None or not 1 <= len(shape) <= MOST_AXES:
        wanted = f"one with 1 to {MOST_AXES} axes"
        raise ValueError(f"{name} is not an array of numbers, expected {wanted}")
    return np.dtype(match["dtype"]), match["fortran"] == "True", shape


def _consecutive(path: Path, labels: list[Array]) -> tuple[list[Any], list[IntArray]]:
    """Return the classes, and the labels of each part as indices of them."""
    first = "ui" if labels[0].dtype.kind in "ui" else labels[0].dtype.kind
    for y in labels:
        if y.dtype.kind not in "uiUS" or y.dtype.kind not in first:
            wanted = "whole numbers or texts, of one kind"
            raise ValueError(f"{path}: the labels are {y.dtype}, expected {wanted}")
        if y.dtype.kind == "i" and y.size and y.min() < 0:
            wanted = "a label of at least 0"
            raise ValueError(expected(f"{path}: y[{y.argmin()}]", int(y.min()), wanted))
    labels = [np.char.decode(y, "latin1") if y.dtype.kind == "S" else y for y in labels]
    classes = np.unique(np.concatenate([np.unique(y) for y in labels]))
    if classes.dtype.kind == "f":  # NumPy has no type for both int64 and uint64
        raise ValueError(f"{path}: the labels are of two types, expected one")
    return classes.tolist(), [np.searchsorted(classes, y).astype(np.int64) for y in labels]
