"""Checks that the states of all plug-in parts share: named tensors, and metadata as JSON types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dualcba.checkpoint import Tensors, check_dense, check_same_layout
from dualcba.errors import expected

State = dict[str, Any]


def split_state(state: Any, fields: Mapping[str, type]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata of a state; raise unless it has these fields."""
    found: dict[str, dict[str, Any]] = {}
    for part in ("tensors", "meta"):
        given = state.get(part) if isinstance(state, Mapping) else None
        if not isinstance(given, Mapping):
            raise ValueError(f"the state has no entry {part!r}, expected the result of state_dict")
        found[part] = dict(given)
    tensors, meta = found["tensors"], found["meta"]
    check_dense(tensors)
    if meta.keys() != fields.keys():
        raise ValueError(expected("fields of the state", sorted(meta), str(sorted(fields))))
    for name, kind in fields.items():
        if type(meta[name]) is not kind or (kind is int and meta[name] < 0):
            wanted = {int: "a count", str: "a name", dict: "a dict"}[kind]
            raise ValueError(expected(f"the state's {name}", meta[name], wanted))
    return tensors, meta


def check_tensors(own: Tensors, given: Mapping[str, Tensor]) -> None:
    """Raise unless all entries have the same layout as `own`, and finite values."""
    check_same_layout(own, given)
    for name, t in given.items():
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise ValueError(f"the state's entry {name!r} holds a NaN or an infinite value")
