"""Copies from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on a device, without waiting for the copy.

    On a CPU it is the tensor itself; to CUDA it is copied asynchronously from pinned memory.

    >>> to_device(torch.arange(3), torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
