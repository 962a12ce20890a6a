"""Loading of the Triton kernels, which need Triton and so are optional."""

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
