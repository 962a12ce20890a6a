"""Engines that run a training step: eager on any device, or captured as a CUDA graph."""

from __future__ import annotations

import torch

from dualcba.engine.captured import Captured
from dualcba.engine.eager import Eager, Engine
from dualcba.engine.ranks import Ranks
from dualcba.errors import expected
from dualcba.options import Hardware, definitions

__all__ = ["Captured", "Eager", "Engine", "Ranks", "make_engine", "resolve_device"]

DEVICES = "'auto', 'cpu', 'cuda' or 'cuda:N'"


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device of that name; `"auto"` is CUDA if available, else the CPU.

    Raises a ValueError for a CUDA device that does not exist.
    """
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
            wanted = f"one of the {count} CUDA devices of this machine"
            raise ValueError(expected("device", str(name), wanted))
    return device


def make_engine(name: str, device: torch.device, *, distributed: bool = False) -> Engine:
    """Return the engine of that name; `"auto"` is captured on CUDA and eager on a CPU.

    If `distributed`, the engine shares its work with the other ranks, and `"auto"` is eager.
    """
    definitions(Hardware)["engine"].check(name)
    if distributed:
        if name == "captured":
            raise ValueError(expected("engine", name, "'auto' or 'eager' if distributed"))
        return Eager(device, Ranks(device))
    if name == "captured" and device.type != "cuda":
        raise ValueError(expected("engine", name, f"'eager' on the device '{device}'"))
    return Captured(device) if device.type == "cuda" and name != "eager" else Eager(device)
