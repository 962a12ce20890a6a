"""Datasets, streams of tasks, and augmentation.

Names are imported on first use, so that `load_dataset`, `data_dir` and the names of the datasets
can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dualcba.data.download.published import PUBLISHED_DATASETS
from dualcba.data.loading import DATASETS, data_dir, load_dataset

if TYPE_CHECKING:
    from dualcba.data.arrangement import gaussian, i_blurry, long_tailed
    from dualcba.data.dataset import Dataset, check_labels, check_samples, from_arrays
    from dualcba.data.readers.folder import from_folder
    from dualcba.data.readers.npz import from_npz
    from dualcba.data.readers.torch_dataset import from_torch
    from dualcba.data.stream import Task, batches, blurry, cycled, disjoint, labelled
    from dualcba.data.transforms import Transform
    from dualcba.data.validation import validation_split

__all__ = [
    "DATASETS", "PUBLISHED_DATASETS", "Dataset", "Task", "Transform", "batches", "blurry",
    "check_labels", "check_samples", "cycled", "data_dir", "disjoint", "from_arrays",
    "from_folder", "from_npz", "from_torch", "gaussian", "i_blurry", "labelled", "load_dataset",
    "long_tailed", "validation_split",
]  # fmt: skip

_LAZY_IMPORTS = {
    "arrangement": ("gaussian", "i_blurry", "long_tailed"),
    "dataset": ("Dataset", "check_labels", "check_samples", "from_arrays"),
    "readers.folder": ("from_folder",),
    "readers.npz": ("from_npz",),
    "readers.torch_dataset": ("from_torch",),
    "stream": ("Task", "batches", "blurry", "cycled", "disjoint", "labelled"),
    "transforms": ("Transform",),
    "validation": ("validation_split",),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name in `_LAZY_IMPORTS` on first use."""
        for module, names in _LAZY_IMPORTS.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
