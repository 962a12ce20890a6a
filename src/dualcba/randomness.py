"""One seed, and independent named generators made from it.

Each purpose has a generator of its own, such as `"memory"` or `"order"`, so that one more draw
for one purpose changes nothing for the others. All draws are made on the host: the same seed gives
the same draws on every device.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.errors import expected


def entropy(seed: int, *names: str | int) -> np.random.SeedSequence:
    """Return the seed sequence of one named purpose; different names are independent."""
    keys = [zlib.crc32(n.encode()) if isinstance(n, str) else n for n in names]
    return np.random.SeedSequence([seed, *keys])


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator for one named purpose.

    >>> a, b = generator(0, "memory"), generator(0, "order")
    >>> int(a.integers(100)) == int(generator(0, "memory").integers(100))
    True
    >>> a.bit_generator.state["state"] == b.bit_generator.state["state"]
    False
    """
    return np.random.default_rng(entropy(seed, *names))


def restore_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a NumPy generator that continues from a `bit_generator.state`."""
    rng = np.random.default_rng(0)
    try:
        rng.bit_generator.state = state
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        known = type(rng.bit_generator).__name__
        raise ValueError(expected("rng", state, f"the state of a {known}")) from error
    return rng


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a torch generator on the CPU for one named purpose, to initialise weights."""
    state = int(entropy(seed, *names).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator().manual_seed(state)


def restore_torch_generator(state: Tensor) -> torch.Generator:
    """Return a torch generator on the CPU that continues from a `get_state()`."""
    rng = torch.Generator()
    try:
        rng.set_state(state.cpu())
    except RuntimeError as error:
        raise ValueError(f"{error}, expected the state of a torch generator") from error
    return rng


_in_turns = threading.RLock()


@contextmanager
def global_generator(seed: int | None = None) -> Iterator[None]:
    """Seed torch's global generator of the host, if a seed is given, and restore it afterwards.

    All threads have the same generator, so they enter in turns.
    """
    with _in_turns, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Initialise networks made inside from the seed; torch's global generator is left unchanged."""
    with global_generator(torch_generator(seed, "init").initial_seed()), torch.device("cpu"):
        yield
