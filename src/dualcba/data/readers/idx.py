"""MNIST and Fashion-MNIST in the published idx files, compressed (`.gz`) or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, IntArray, from_arrays

MNIST_MEAN, MNIST_STD = (0.1307,), (0.3081,)
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
SIDE = 28
NUM_CLASSES = 10
UBYTE_MAGIC = b"\0\0\x08"  # the first bytes of an idx file of bytes; the number of axes follows

ImagesAndLabels = tuple[NDArray[np.uint8], IntArray]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes; if `path` does not exist, read `path` with the suffix `.gz`."""
    content = _read_bytes(path)
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != UBYTE_MAGIC or len(content) < 4 + 4 * axes:
        raise ValueError(f"{path} starts with {content[:4]!r}, expected an idx file of bytes")
    shape = np.frombuffer(content, ">u4", axes, 4).tolist()
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if data.size != int(np.prod(shape, dtype=np.float64)):
        raise ValueError(f"{path} holds {data.size} bytes, expected the shape {tuple(shape)}")
    return data.reshape(shape).copy()  # torch requires a writable array


def _read_bytes(path: Path) -> bytes:
    compressed = path.with_name(path.name + ".gz")
    if path.is_file():
        return path.read_bytes()
    if not compressed.is_file():
        raise FileNotFoundError(
            f"{compressed} is missing, expected a file of the published dataset"
        )
    try:
        return gzip.decompress(compressed.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{compressed} cannot be unpacked: {error}") from error


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
