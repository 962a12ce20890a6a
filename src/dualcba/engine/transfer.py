"""From the host to a device, without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; on a CPU itself, on CUDA queued through pinned memory.

    >>> to_device(torch.arange(3), torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
