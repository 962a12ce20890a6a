"""Versions of software and hardware, as recorded in results."""

from __future__ import annotations

import platform

import numpy as np
import torch

from dualcba.learner import Learner


def versions(learner: Learner) -> dict[str, str]:
    """Return the versions of the software, and the hardware, that computed a result."""
    import dualcba

    return {
        "dualcba": dualcba.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device_name(learner.device),
        "engine": type(learner.parts.engine).__name__.lower(),
        "precision": "bf16" if learner.parts.precision.bf16 else "fp32",
    }


def device_name(device: torch.device) -> str:
    """Return the name of a device in a result."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"
