"""Datasets by name, from disk or from arrays; streams of tasks; augmentation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dualcba.data.cifar import cifar10, cifar100
from dualcba.data.dataset import Dataset, check_labels, check_samples, from_arrays
from dualcba.data.digits import digits
from dualcba.data.stream import Task, batches, disjoint
from dualcba.data.transforms import Transform
from dualcba.errors import unknown

__all__ = [
    "DATASETS", "Dataset", "Task", "Transform", "batches", "check_labels", "check_samples",
    "data_dir", "disjoint", "from_arrays", "load_dataset",
]  # fmt: skip

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "digits": lambda _: digits(),
    "cifar10": cifar10,
    "cifar100": cifar100,
}


def data_dir(given: str | Path | None = None) -> Path:
    """Where datasets lie: as given, else `$DUALCBA_DATA`, else `data` in the current folder."""
    return Path(given or os.environ.get("DUALCBA_DATA") or "data")


def load_dataset(name: str, root: str | Path | None = None) -> Dataset:
    """Load a dataset by name."""
    if name not in DATASETS:
        raise ValueError(unknown("dataset", name, DATASETS))
    return DATASETS[name](data_dir(root))
