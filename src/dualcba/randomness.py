"""One seed, independent named generators; every draw is made on the host, ahead of the step.

What a step needs at random (which memories to draw, where to crop, which slots to fill) does not
depend on the data. It is drawn here as a few hundred integers and sent to the device as one
array, a *packet*. The step itself holds no randomness: it can be captured as a CUDA graph, and
the same seed gives the same draws on every device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.errors import expected

Array = NDArray[np.generic]
Layout = tuple[tuple[str, tuple[int, ...], bool], ...]
"""Name, shape and whether it holds floats, for each part of a packet."""


def entropy(seed: int, *names: str | int) -> np.random.SeedSequence:
    """The seed sequence of one named purpose; names are independent of each other."""
    keys = [zlib.crc32(n.encode()) if isinstance(n, str) else n for n in names]
    return np.random.SeedSequence([seed, *keys])


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for one named purpose.

    >>> a, b = generator(0, "memory"), generator(0, "order")
    >>> int(a.integers(100)) == int(generator(0, "memory").integers(100))
    True
    >>> a.bit_generator.state["state"] == b.bit_generator.state["state"]
    False
    """
    return np.random.default_rng(entropy(seed, *names))


def resumed(state: Mapping[str, Any]) -> np.random.Generator:
    """A NumPy generator that goes on from another's `bit_generator.state`."""
    rng = np.random.default_rng(0)
    try:
        rng.bit_generator.state = state
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        known = type(rng.bit_generator).__name__
        raise ValueError(expected("rng", state, f"the state of a {known}")) from error
    return rng


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """A torch generator on the CPU for one named purpose, for initialising weights."""
    state = int(entropy(seed, *names).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator().manual_seed(state)


def torch_resumed(state: Tensor) -> torch.Generator:
    """A torch generator on the CPU that goes on from another's `get_state`."""
    rng = torch.Generator()
    try:
        rng.set_state(state.cpu())
    except RuntimeError as error:
        raise ValueError(f"{error}, expected the state of a torch generator") from error
    return rng


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Networks made within draw their first weights by the seed; torch's generator is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_generator(seed, "init").initial_seed())
        yield


def pack(parts: Mapping[str, Array]) -> tuple[NDArray[np.int64], Layout]:
    """Lay integers and floats of a step into one int64 array (floats by their bits)."""
    layout = tuple((k, v.shape, v.dtype.kind == "f") for k, v in parts.items())
    flat = [_bits(v).ravel() for v in parts.values()]
    return np.concatenate(flat) if flat else np.empty(0, np.int64), layout


def _bits(a: Array) -> NDArray[np.int64]:
    whole = a.dtype.kind != "f"
    return a.astype(np.int64, copy=False) if whole else a.astype(np.float64).view(np.int64)


def unpack(packet: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Views into a packet, by name.

    >>> parts = {"i": np.arange(3), "f": np.array([[0.5], [2.0]])}
    >>> {k: v.tolist() for k, v in unpack(torch.from_numpy(pack(parts)[0]), pack(parts)[1]).items()}
    {'i': [0, 1, 2], 'f': [[0.5], [2.0]]}
    """
    parts = torch.split(packet, [math.prod(shape) for _, shape, _ in layout])
    out = {}
    for (name, shape, floats), part in zip(layout, parts, strict=True):
        out[name] = (part.view(torch.float64) if floats else part).view(shape)
    return out
