"""Datasets by name, from disk or from arrays; streams of tasks; augmentation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualcba.data.dataset import Dataset, check_labels, check_samples, from_arrays
from dualcba.data.download.published import SOURCES
from dualcba.data.readers.cifar import cifar10, cifar100
from dualcba.data.readers.digits import digits
from dualcba.data.readers.folder import from_folder
from dualcba.data.readers.idx import fashion_mnist, mnist
from dualcba.data.readers.npz import from_npz
from dualcba.data.readers.tiny_imagenet import tiny_imagenet
from dualcba.data.readers.torch_dataset import from_torch
from dualcba.data.stream import Task, batches, blurry, cycled, disjoint, labelled
from dualcba.data.transforms import Transform
from dualcba.errors import unknown

__all__ = [
    "DATASETS", "SOURCES", "Dataset", "Task", "Transform", "batches", "blurry", "check_labels",
    "check_samples", "cycled", "data_dir", "disjoint", "from_arrays", "from_folder", "from_npz",
    "from_torch", "labelled", "load_dataset",
]  # fmt: skip

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": lambda _: digits(),
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny-imagenet": tiny_imagenet,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
}


def data_dir(given: str | Path | None = None) -> Path:
    """Where datasets lie: as given, else `$DUALCBA_DATA`, else `data` in the current folder."""
    return Path(given or os.environ.get("DUALCBA_DATA") or "data")


def load_dataset(
    name_or_path: str | Path,
    root: str | Path | None = None,
    *,
    show: bool | None = None,
    **options: Any,
) -> Dataset:
    """A dataset by name, from a folder of images by class, or from an `.npz` file.

    Parameters
    ----------
    name_or_path
        A name goes before a folder of that name; write `./name` for the folder.
    root
        Where named datasets lie: see `data_dir`.
    show
        Whether to show a progress bar where it takes long; by default if stderr is a terminal.
    options
        Those of `from_folder` or `from_npz`.

    >>> load_dataset("digits").input_shape
    (1, 8, 8)
    """
    name = str(name_or_path)
    if name in DATASETS:
        read, where = DATASETS[name], data_dir(root)
    else:
        read, where = _reader(name), Path(name).expanduser()
    named = inspect.signature(read).parameters.values()
    allowed = [p.name for p in named if p.kind == p.KEYWORD_ONLY]
    for option in options:
        if option not in allowed:
            known = ", ".join(allowed) or "none"
            raise ValueError(f"dataset {name} takes no option {option}, expected one of: {known}")
    try:
        return read(where, **options, **({"show": show} if "show" in allowed else {}))
    except FileNotFoundError as error:
        if name not in SOURCES:
            raise
        hint = f"`dualcba data fetch {name}` brings it"
        raise FileNotFoundError(f"{error} ({hint})") from error


def _reader(name: str) -> Callable[..., Dataset]:
    """What reads a path."""
    path = Path(name).expanduser()
    if path.is_dir():
        return from_folder
    if path.suffix == ".npz":
        return from_npz
    if path.exists():
        raise ValueError(f"{path} is a file, expected a folder of images by class or an .npz file")
    if os.sep in name or name.startswith((".", "~")):
        raise FileNotFoundError(f"{path} is missing, expected a folder or an .npz file there")
    raise ValueError(unknown("dataset", name, DATASETS) + ", and there is no folder of that name")
