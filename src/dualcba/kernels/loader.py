"""Load the Triton kernels, which are optional because they need Triton."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def load_kernels(name: str) -> Any:
    """Return the module `dualcba.kernels.<name>`, or None if Triton is not installed."""
    try:
        return import_module(f"dualcba.kernels.{name}")
    except ImportError:
        return None
