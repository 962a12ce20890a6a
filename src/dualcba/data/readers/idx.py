"""MNIST and Fashion-MNIST in the published idx files, compressed (`.gz`) or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, IntArray, from_arrays

MNIST_MEAN, MNIST_STD = (0.1307,), (0.3081,)
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
SIDE = 28
NUM_CLASSES = 10
UBYTE_MAGIC = b"\0\0\x08"  # an idx file of unsigned bytes; the number of axes follows
MOST_AXES = 4
DEFLATE_RATIO = 1032  # largest ratio of uncompressed to compressed bytes

ImagesAndLabels = tuple[NDArray[np.uint8], IntArray]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes; if `path` does not exist, read `path` with the suffix `.gz`.

    The sizes in the header are compared with the size of the file before memory is allocated.
    """
    source = _existing(path)
    most = source.stat().st_size * (DEFLATE_RATIO if source.suffix == ".gz" else 1)
    try:
        with _open(source) as file:
            shape = _read_shape(source, file.read(4), file)
            wanted = math.prod(shape)
            data = file.read(min(wanted, most) + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{source} cannot be unpacked: {error}") from error
    if len(data) != wanted:
        count = len(data) if len(data) < wanted else f"more than {wanted}"
        raise ValueError(f"{source} holds {count} bytes, expected the shape {shape}")
    return np.frombuffer(bytearray(data), np.uint8).reshape(shape)  # torch requires writable memory


def _open(path: Path) -> IO[bytes]:
    file = gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115
    return cast(IO[bytes], file)


def _read_shape(path: Path, first: bytes, file: IO[bytes]) -> tuple[int, ...]:
    axes = first[3] if len(first) > 3 else 0
    sizes = file.read(4 * axes)
    if first[:3] != UBYTE_MAGIC or len(sizes) < 4 * axes or not 1 <= axes <= MOST_AXES:
        wanted = f"an idx file of bytes with at most {MOST_AXES} axes"
        raise ValueError(f"{path} starts with {first!r}, expected {wanted}")
    return struct.unpack(f">{axes}I", sizes)


def _existing(path: Path) -> Path:
    compressed = path.with_name(path.name + ".gz")
    for found in (path, compressed):
        if found.is_file():
            return found
    raise FileNotFoundError(f"{compressed} is missing, expected a file of the published dataset")


def mnist(root: Path) -> Dataset:
    """Load MNIST from `root/mnist` or `root/MNIST/raw`."""
    train, test = _read_dataset(root, "mnist", "MNIST")
    return from_arrays(
        *train, *test, num_classes=NUM_CLASSES, mean=MNIST_MEAN, std=MNIST_STD, pad=2,
        name="mnist",
    )  # fmt: skip


def fashion_mnist(root: Path) -> Dataset:
    """Load Fashion-MNIST from `root/fashion-mnist` or `root/FashionMNIST/raw`."""
    train, test = _read_dataset(root, "fashion-mnist", "FashionMNIST")
    return from_arrays(
        *train, *test, num_classes=NUM_CLASSES, mean=FASHION_MEAN, std=FASHION_STD,
        pad=2, flip=True, name="fashion-mnist",
    )  # fmt: skip


def _read_dataset(
    root: Path, name: str, torchvision_name: str
) -> tuple[ImagesAndLabels, ImagesAndLabels]:
    """Read the training and the test part, from our folder or from that of torchvision."""
    raw = root / torchvision_name / "raw"
    folder = raw if raw.is_dir() and not (root / name).is_dir() else root / name
    return _read_part(folder, "train"), _read_part(folder, "t10k")


def _read_part(folder: Path, part: str) -> ImagesAndLabels:
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"{images} has the shape {x.shape}, expected (n, {SIDE}, {SIDE})")
    if y.shape != (len(x),):
        raise ValueError(f"{labels} has the shape {y.shape}, expected ({len(x)},), one per image")
    if len(y) and y.max() >= NUM_CLASSES:
        raise ValueError(f"{labels} holds the label {y.max()}, expected labels from 0 to 9")
    return x[:, None], y.astype(np.int64)
