"""Load a dataset by name or from a path. Readers are imported only when they are used."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualcba.data.download.published import PUBLISHED_DATASETS
from dualcba.errors import unknown
from dualcba.io import user_path

if TYPE_CHECKING:
    from dualcba.data.dataset import Dataset

    Reader = Callable[..., Dataset]

DATASETS = {
    "digits": "digits:digits",
    "cifar10": "cifar:cifar10",
    "cifar100": "cifar:cifar100",
    "tiny-imagenet": "tiny_imagenet:tiny_imagenet",
    "mnist": "idx:mnist",
    "fashion-mnist": "idx:fashion_mnist",
}
"""The reader of each named dataset: `module:function` in `dualcba.data.readers`."""


def data_dir(given: str | Path | None = None) -> Path:
    """Return the folder of the datasets: `given`, else `$DUALCBA_DATA`, else `data`."""
    return Path(given or os.environ.get("DUALCBA_DATA") or "data")


def load_dataset(
    name_or_path: str | Path,
    root: str | Path | None = None,
    *,
    show: bool | None = None,
    **options: Any,
) -> Dataset:
    """Load a dataset by name, from a folder of images by class, or from an `.npz` file.

    Parameters
    ----------
    name_or_path
        A key of `DATASETS`, or a path. A name is preferred to a folder of the same name; write
        `./name` for the folder.
    root
        The folder that contains the named datasets; see `data_dir` for the default.
    show
        Whether to show a progress bar; by default if stderr is a terminal.
    options
        Options of `from_folder` or `from_npz`.

    >>> load_dataset("digits").input_shape
    (1, 8, 8)
    """
    name = str(name_or_path)
    if name in DATASETS:
        reader, path = _named_reader(name), data_dir(root)
    else:
        reader, path = _path_reader(name), user_path(name)
    parameters = inspect.signature(reader).parameters.values()
    allowed = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    for option in options:
        if option not in allowed:
            known = ", ".join(allowed) or "none"
            raise ValueError(f"dataset {name} takes no option {option}, expected one of: {known}")
    if "show" in allowed:
        options["show"] = show
    try:
        data = reader(path, **options)
    except FileNotFoundError as error:
        if name not in PUBLISHED_DATASETS:
            raise
        hint = f"`dualcba data fetch {name}` downloads it"
        raise FileNotFoundError(f"{error} ({hint})") from error
    return data if name in DATASETS else replace(data, path=str(path.resolve()))


def _named_reader(name: str) -> Reader:
    module, function = DATASETS[name].split(":")
    reader: Reader = getattr(import_module(f"dualcba.data.readers.{module}"), function)
    return reader


def _path_reader(name: str) -> Reader:
    """Return the function that reads the folder or file at a path."""
    from dualcba.data.readers.folder import from_folder
    from dualcba.data.readers.npz import from_npz

    path = user_path(name)
    if path.is_dir():
        return from_folder
    if path.suffix == ".npz":
        return from_npz
    if path.exists():
        raise ValueError(f"{path} is a file, expected a folder of images by class or an .npz file")
    if os.sep in name or name.startswith((".", "~")):
        raise FileNotFoundError(f"{path} is missing, expected a folder or an .npz file")
    raise ValueError(unknown("dataset", name, DATASETS) + ", and there is no folder of that name")
