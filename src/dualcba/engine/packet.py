"""Packets: the random numbers of a step as one array, for a single transfer to the device.

A step draws a few hundred integers and floats on the host. `pack` copies the arrays of a dataclass
into one int64 array; `unpack` rebuilds the dataclass on the device, with views into the packet
instead of arrays. The layout is hashable and holds no values: equal layouts mean equal shapes, so
an engine can use it as the key of a captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

Leaf = tuple[tuple[int, ...], bool]
"""An array: its shape, and whether it holds floats."""

Node = tuple[type, tuple[str, ...], tuple["Layout", ...]]
"""A dataclass, dict or tuple: its type, the names of its parts (a tuple has none), the parts."""

Layout = Leaf | Node | None
"""The structure of a packet; None takes no space. Plain tuples are fast to hash."""


def pack(tree: Any) -> tuple[NDArray[np.int64], Layout]:
    """Copy the arrays of a tree into one int64 array; floats are stored as their bits.

    The tree consists of dataclasses, dicts with string keys, tuples, arrays and None.

    >>> packet, layout = pack({"rows": np.arange(3), "noise": np.array([0.5]), "augment": None})
    >>> packet.shape
    (4,)
    """
    arrays: list[Array] = []
    layout = _lay_out(tree, arrays)
    packet = np.concatenate(arrays, dtype=np.int64) if arrays else np.empty(0, np.int64)
    return packet, layout


def _lay_out(tree: Any, arrays: list[Array]) -> Layout:
    """Append the arrays of a tree to a list, each in one dimension, and return their layout."""
    if tree is None:
        return None
    if isinstance(tree, np.ndarray):
        floats = tree.dtype.kind == "f"
        bits = tree.astype(np.float64).view(np.int64) if floats else tree
        arrays.append(bits if bits.ndim == 1 else bits.ravel())
        return tree.shape, floats
    kind: Any = type(tree)
    names: tuple[str, ...] = ()
    values = tree
    if kind is dict:
        names, values = tuple(tree), tree.values()
    elif kind is not tuple:
        names, get = _fields(kind)
        values = get(tree)
    return kind, names, tuple([_lay_out(value, arrays) for value in values])


@lru_cache
def _fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of a dataclass's fields, and a function that returns their values."""
    names = tuple(kind.__dataclass_fields__)
    if len(names) > 1:
        return names, attrgetter(*names)  # fast, but returns no tuple for a single field
    return names, lambda tree: tuple(getattr(tree, name) for name in names)


def as_tensors(tree: Any) -> Any:
    """Return the tree with tensors on the host, as `unpack` would return it, without a packet.

    >>> as_tensors({"rows": np.arange(3), "augment": None})["rows"].tolist()
    [0, 1, 2]
    """
    if tree is None:
        return None
    if isinstance(tree, np.ndarray):
        wanted = np.float64 if tree.dtype.kind == "f" else np.int64
        return torch.from_numpy(tree if tree.dtype == wanted else tree.astype(wanted))
    kind: Any = type(tree)
    if kind is dict:
        return {name: as_tensors(value) for name, value in tree.items()}
    if kind is tuple:
        return tuple([as_tensors(value) for value in tree])
    return kind(*[as_tensors(value) for value in _fields(kind)[1](tree)])


def unpack(packet: Tensor, layout: Layout) -> Any:
    """Rebuild the packed tree, with views into the packet instead of arrays.

    >>> packet, layout = pack({"rows": np.arange(3), "noise": np.array([0.5]), "augment": None})
    >>> unpack(torch.from_numpy(packet), layout)["noise"].tolist()
    [0.5]
    """
    return _rebuild(layout, iter(packet.split_with_sizes(_sizes(layout))))


@lru_cache
def _sizes(layout: Layout) -> list[int]:
    """Return the number of entries of each array in a packet."""
    if layout is None:
        return []
    if len(layout) == 2:
        return [math.prod(layout[0])]
    return [size for part in layout[2] for size in _sizes(part)]


def _rebuild(layout: Layout, parts: Iterator[Tensor]) -> Any:
    if layout is None:
        return None
    if len(layout) == 2:
        shape, floats = layout
        part = next(parts)
        part = part.view(torch.float64) if floats else part
        return part if len(shape) == 1 else part.view(shape)
    kind, names, layouts = layout
    values = [_rebuild(one, parts) for one in layouts]
    if kind is tuple:
        return tuple(values)
    if kind is dict:
        return dict(zip(names, values, strict=True))
    return kind(*values)  # a dataclass takes its fields in order
