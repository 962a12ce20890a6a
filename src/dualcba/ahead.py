"""Kernels compiled ahead, side by side.

Triton compiles a kernel when it is first launched, so those of a step come one after the other.
Most of that is C++ and other programs, which threads can do at the same time: each kernel is
launched once on next to nothing while a learner is made, and found when a step launches it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from dualcba import fused
from dualcba.adaptors import Adaptor
from dualcba.engine import Engine
from dualcba.nets import Network, ResNet18

THREADS = 8


def rehearse(network: Network, adaptor: Adaptor | None, dtype: torch.dtype, engine: Engine) -> None:
    """Launch what the steps of a learner will launch, where its network computes in `dtype`."""
    calls = list(adaptor.rehearsals()) if adaptor is not None else []
    for module in network.modules():
        if isinstance(module, ResNet18):  # what passes activations to `fused`
            calls += fused.rehearsals(module, dtype)

    def do(call: Callable[[], object]) -> None:
        with suppress(Exception), engine.scope(), torch.no_grad():
            call()  # what fails here fails again, and is seen, where it is needed

    if calls:
        do(calls.pop(0))  # alone: Triton finds its driver
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(do, calls))
