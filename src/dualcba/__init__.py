"""Online continual learning with Dual Continual Bias Adaptors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualcba.data import Dataset, Transform, from_arrays, load_dataset
    from dualcba.learner import Learner
    from dualcba.methods import Method

__version__ = "0.2.0"

__all__ = ["Dataset", "Learner", "Method", "Transform", "from_arrays", "load_dataset"]

_HOMES = {
    "Dataset": "dualcba.data",
    "Learner": "dualcba.learner",
    "Method": "dualcba.methods",
    "Transform": "dualcba.data",
    "from_arrays": "dualcba.data",
    "load_dataset": "dualcba.data",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `dualcba --help` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dualcba' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
