"""Engines: how a step is run. Eagerly anywhere, or captured as a CUDA graph and replayed."""

from __future__ import annotations

import torch

from dualcba.engine.captured import Captured
from dualcba.engine.eager import Eager, Engine
from dualcba.errors import expected

__all__ = ["Captured", "Eager", "Engine", "make_engine", "resolve_device"]

ENGINES = ("auto", "eager", "captured")
DEVICES = "'auto', 'cpu', 'cuda' or 'cuda:N'"


def resolve_device(name: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one; CUDA where there is none is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(expected("device", str(name), DEVICES)) from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(expected("device", str(name), DEVICES))
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(expected("device", str(name), f"one of the {count} CUDA devices here"))
    return device


def make_engine(name: str, device: torch.device) -> Engine:
    """`auto` captures on CUDA and is eager elsewhere."""
    if name not in ENGINES:
        raise ValueError(expected("engine", name, " or ".join(map(repr, ENGINES))))
    if name == "captured" and device.type != "cuda":
        raise ValueError(expected("engine", name, f"'eager' on the device '{device}'"))
    return Captured(device) if device.type == "cuda" and name != "eager" else Eager(device)
