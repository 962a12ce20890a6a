"""MNIST and Fashion-MNIST in their published idx files, packed (`.gz`) or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualcba.data.dataset import Dataset, from_arrays

MNIST_MEAN, MNIST_STD = (0.1307,), (0.3081,)
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
SIDE = 28
CLASSES = 10
UBYTE = b"\0\0\x08"  # an idx file of bytes starts so; the number of axes follows


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes of an idx file in their shape; its `.gz` is read where it is not there itself."""
    content = _content(path)
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != UBYTE or len(content) < 4 + 4 * axes:
        raise ValueError(f"{path} starts with {content[:4]!r}, expected an idx file of bytes")
    shape = np.frombuffer(content, ">u4", axes, 4).tolist()
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if data.size != int(np.prod(shape, dtype=np.float64)):
        raise ValueError(f"{path} holds {data.size} bytes, expected the shape {tuple(shape)}")
    return data.reshape(shape).copy()  # a copy can be written to, as torch expects


def _content(path: Path) -> bytes:
    packed = path.with_name(path.name + ".gz")
    if path.is_file():
        return path.read_bytes()
    if not packed.is_file():
        raise FileNotFoundError(f"{packed} is missing, expected a file of the published dataset")
    try:
        return gzip.decompress(packed.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{packed} cannot be unpacked: {error}") from error


def mnist(root: Path) -> Dataset:
    """MNIST from `root/mnist` or `root/MNIST/raw`."""
    train, test = _read(root, "mnist", "MNIST")
    return from_arrays(
        *train, *test, num_classes=CLASSES, mean=MNIST_MEAN, std=MNIST_STD, pad=2, name="mnist",
    )  # fmt: skip


def fashion_mnist(root: Path) -> Dataset:
    """Fashion-MNIST from `root/fashion-mnist` or `root/FashionMNIST/raw`."""
    train, test = _read(root, "fashion-mnist", "FashionMNIST")
    return from_arrays(
        *train, *test, num_classes=CLASSES, mean=FASHION_MEAN, std=FASHION_STD,
        pad=2, flip=True, name="fashion-mnist",
    )  # fmt: skip


Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _read(root: Path, ours: str, theirs: str) -> tuple[Part, Part]:
    raw = root / theirs / "raw"
    folder = raw if raw.is_dir() and not (root / ours).is_dir() else root / ours
    return _part(folder, "train"), _part(folder, "t10k")


def _part(folder: Path, part: str) -> Part:
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"{images} has the shape {x.shape}, expected (n, {SIDE}, {SIDE})")
    if y.shape != (len(x),):
        raise ValueError(f"{labels} has the shape {y.shape}, expected ({len(x)},), one per image")
    if len(y) and y.max() >= CLASSES:
        raise ValueError(f"{labels} holds the label {y.max()}, expected labels from 0 to 9")
    return x[:, None], y.astype(np.int64)
