"""Compare states entry by entry, and measure the memory of an object."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor


def digest(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Return each entry of a state as bytes."""
    leaves = {k: as_bytes(v) for k, v in state["tensors"].items()}
    return {**leaves, "meta": json.dumps(state["meta"], sort_keys=True).encode()}


def as_bytes(t: Tensor) -> bytes:
    """Return the data of a tensor as bytes."""
    return t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def difference(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> str:
    """Return the names of the first entries in which two states differ; empty if they are equal."""
    names = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def held_bytes(root: object, leaving_out: Collection[object] = ()) -> int:
    """Return the approximate memory of an object in bytes.

    Counts tensors, arrays, strings, numbers and the entries of containers, including those of the
    object's attributes. Objects in `leaving_out` are not counted.

    >>> held_bytes({"a": torch.zeros(100), "b": [1, 2]}) - held_bytes({"a": None, "b": [1, 2]})
    400
    """
    met: dict[int, object] = {id(o): o for o in leaving_out}
    storages: dict[int, int] = {}
    total, todo = 0, [root]
    while todo:
        item = todo.pop()
        if id(item) in met:
            continue
        met[id(item)] = item
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            todo.append(item.grad if item.is_leaf else None)
        else:
            total += _own_bytes(item)
            todo += _parts(item)
    return total + sum(storages.values())


def _own_bytes(item: object) -> int:
    if isinstance(item, np.ndarray):
        return item.nbytes
    if isinstance(item, str | bytes | bytearray):
        return len(item)
    if isinstance(item, Mapping | list | tuple | set | frozenset | deque):
        return 8 * len(item)
    return 32 if isinstance(item, int | float | complex | np.generic) else 0


def _parts(item: Any) -> list[Any]:
    """Return the items and attributes of an object; none for classes, modules and functions."""
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset | deque):
        return list(item)
    if isinstance(item, type | ModuleType | FunctionType | np.ndarray):
        return []
    if isinstance(item, partial):
        return [item.args, item.keywords]
    slots = [
        getattr(item, s, None) for s in getattr(type(item), "__slots__", ()) if s != "__dict__"
    ]
    return [*slots, getattr(item, "__dict__", None)]
