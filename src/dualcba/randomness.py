"""Independent named generators, made from one seed.

Each purpose, such as `"memory"` or `"order"`, has its own generator, so a further draw for one
purpose does not change the others. All draws are made on the host: the same seed gives the same
draws on every device.
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


_generator_lock = threading.RLock()


@contextmanager
def global_generator(seed: int | None = None) -> Iterator[None]:
    """Seed torch's global CPU generator, if a seed is given, and restore its state afterwards.

    All threads share this generator, so only one at a time can enter.
    """
    with _generator_lock, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Make torch initialise networks from the seed inside this context; restore its generator."""
    with global_generator(torch_generator(seed, "init").initial_seed()), torch.device("cpu"):
        yield
