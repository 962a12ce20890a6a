"""Packets: the random numbers of a step as one array, for one transfer to the device.

A step draws a few hundred integers and floats on the host. `pack` lays the arrays of a dataclass
into one int64 array; `unpack` gives the same dataclass back on the device, with views into the
packet instead of arrays. The layout is hashable and holds no values: equal layouts mean equal
shapes, so an engine can use it as the key of a captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class Leaf(NamedTuple):
    """The place of an array: its shape, and whether it holds floats."""

    shape: tuple[int, ...]
    floats: bool


class Node(NamedTuple):
    """The place of a dataclass, dict or tuple: its type, the names of its parts, the parts."""

    kind: type
    names: tuple[str, ...]
    parts: tuple[Layout, ...]


Layout = Leaf | Node | None
"""How the parts of a packet lie in it; None takes no place."""


def pack(tree: Any) -> tuple[NDArray[np.int64], Layout]:
    """Lay the arrays of a tree into one int64 array; floats are stored by their bits.

    The tree consists of dataclasses, dicts with string keys, tuples, arrays and None.

    >>> packet, layout = pack({"rows": np.arange(3), "noise": np.array([0.5]), "augment": None})
    >>> packet.shape
    (4,)
    """
    arrays: list[NDArray[np.int64]] = []
    layout = _lay_out(tree, arrays)
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64), layout


def _lay_out(tree: Any, arrays: list[NDArray[np.int64]]) -> Layout:
    if tree is None:
        return None
    if isinstance(tree, np.ndarray):
        floats = tree.dtype.kind == "f"
        arrays.append(_bits(tree, floats).ravel())
        return Leaf(tree.shape, floats)
    names, values = _parts(tree)
    return Node(type(tree), names, tuple([_lay_out(value, arrays) for value in values]))


def _bits(array: Array, floats: bool) -> NDArray[np.int64]:
    if floats:
        return array.astype(np.float64).view(np.int64)
    return array.astype(np.int64, copy=False)


def _parts(tree: Any) -> tuple[tuple[str, ...], Iterable[Any]]:
    """Return the names and values of the parts of a tuple, dict or dataclass."""
    if isinstance(tree, tuple):
        return (), tree
    if isinstance(tree, dict):
        return tuple(tree), tree.values()
    names = tuple(tree.__dataclass_fields__)
    return names, [getattr(tree, name) for name in names]


def unpack(packet: Tensor, layout: Layout) -> Any:
    """Rebuild the packed tree, with views into the packet in the place of arrays.

    >>> packet, layout = pack({"rows": np.arange(3), "noise": np.array([0.5]), "augment": None})
    >>> unpack(torch.from_numpy(packet), layout)["noise"].tolist()
    [0.5]
    """
    sizes = [math.prod(leaf.shape) for leaf in _leaves(layout)]
    return _rebuild(layout, iter(torch.split(packet, sizes)))


def _leaves(layout: Layout) -> Iterator[Leaf]:
    if isinstance(layout, Leaf):
        yield layout
    elif layout is not None:
        for part in layout.parts:
            yield from _leaves(part)


def _rebuild(layout: Layout, parts: Iterator[Tensor]) -> Any:
    if layout is None:
        return None
    if isinstance(layout, Leaf):
        part = next(parts)
        return (part.view(torch.float64) if layout.floats else part).view(layout.shape)
    values = [_rebuild(part, parts) for part in layout.parts]
    if layout.kind is tuple:
        return tuple(values)
    return layout.kind(**dict(zip(layout.names, values, strict=True)))
