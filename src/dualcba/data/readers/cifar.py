"""CIFAR-10 and CIFAR-100 in the layout of the official Python archives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.readers.array_pickle import load_arrays
from dualcba.errors import reason

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


def read_pickle(path: Path) -> dict[bytes, Any]:
    """Read a file of the official archives without running any code that it may contain."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected a file of the official archive")
    try:
        content = load_arrays(path.read_bytes())
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} cannot be read as a CIFAR file: {reason(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a dictionary")
    return content


def _read(paths: Iterable[Path], label_key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (n, 3, 32, 32) and the labels (n,) of several files."""
    xs, ys = [], []
    for path in paths:
        content = read_pickle(path)
        for key in (b"data", label_key):
            if key not in content:
                raise ValueError(f"{path} has no entry {key.decode()!r}")
        x, y = (_as_array(content[key], path) for key in (b"data", label_key))
        if x.ndim != 2 or x.shape[1] != 3072 or x.dtype != np.uint8 or y.shape != x.shape[:1]:
            raise ValueError(
                f"{path} holds {x.dtype} data of shape {x.shape} and labels of shape {y.shape}, "
                "expected uint8 of shape (n, 3072) and n labels"
            )
        xs.append(x.reshape(-1, 3, 32, 32))
        ys.append(y)
    return np.concatenate(xs), np.concatenate(ys)


def _as_array(value: Any, path: Path) -> np.ndarray:
    """Return an array of the pickle, or a list of labels as one."""
    if isinstance(value, list) and all(type(y) is int and abs(y) < 2**63 for y in value):
        return np.array(value, np.int64)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected an array or labels")
    return value


def cifar10(root: Path) -> Dataset:
    """Load CIFAR-10 from `root/cifar-10-batches-py`."""
    folder = root / "cifar-10-batches-py"
    train = _read([folder / f"data_batch_{k}" for k in range(1, 6)], b"labels")
    test = _read([folder / "test_batch"], b"labels")
    return from_arrays(
        *train, *test, num_classes=10, mean=CIFAR10_MEAN, std=CIFAR10_STD,
        pad=4, flip=True, name="cifar10",
    )  # fmt: skip


def cifar100(root: Path) -> Dataset:
    """Load CIFAR-100 with its fine labels from `root/cifar-100-python`."""
    folder = root / "cifar-100-python"
    train = _read([folder / "train"], b"fine_labels")
    test = _read([folder / "test"], b"fine_labels")
    return from_arrays(
        *train, *test, num_classes=100, mean=CIFAR100_MEAN, std=CIFAR100_STD,
        pad=4, flip=True, name="cifar100",
    )  # fmt: skip
