"""Snapshots: modules and optimisers as named tensors, in one file that carries no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dualcba.io import atomic_write

Tensors = dict[str, Tensor]

OPTIONAL_ENTRIES = ("optimizer.", "adaptor_optimizer.", "task_data.")
"""Entries that are there at some steps and not at others."""


def collect_tensors(
    modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> Tensors:
    """Copies of all state, by name."""
    live = {f"{part}.{k}": v for part, m in modules.items() for k, v in m.state_dict().items()}
    for name, optimizer in optimizers.items():
        for i, entries in optimizer.state_dict()["state"].items():
            live |= {f"{name}.{i}.{k}": v for k, v in entries.items() if v is not None}
    return {k: v.detach().clone() for k, v in live.items()}


def load_tensors(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> None:
    """Put a snapshot back."""
    for part, module in modules.items():
        module.load_state_dict(entries_of(tensors, part))
    for name, optimizer in optimizers.items():
        entries: dict[int, Tensors] = {}
        for key, value in entries_of(tensors, name).items():
            i, _, field = key.partition(".")
            entries.setdefault(int(i), {})[field] = value.clone()
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": entries, "param_groups": groups})


def entries_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """The entries of one part, named within it.

    >>> sorted(entries_of({"a.x": torch.ones(1), "a.y": torch.ones(1), "b.x": torch.ones(1)}, "a"))
    ['x', 'y']
    """
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def check_same_layout(mine: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise unless every leaf has the same name, shape and type."""
    for name in sorted(mine.keys() | given.keys()):
        if name.startswith(OPTIONAL_ENTRIES) and not (name in mine and name in given):
            continue
        if name.startswith("task_data."):
            continue
        if name not in given:
            raise ValueError(f"the state has no entry {name!r}, expected {_describe(mine[name])}")
        if name not in mine:
            raise ValueError(f"the state has an entry {name!r} that this learner does not know")
        if mine[name].shape != given[name].shape or mine[name].dtype != given[name].dtype:
            raise ValueError(
                f"the state's entry {name!r} is {_describe(given[name])}, expected {_describe(mine[name])}"
            )


def _describe(t: Tensor) -> str:
    return f"{t.dtype} of shape {tuple(t.shape)}"


def write_state_file(path: Path, state: Mapping[str, Any]) -> None:
    """One safetensors file, with the rest of the state as JSON in its header."""
    tensors = {k: v.contiguous().cpu() for k, v in state["tensors"].items()}
    with atomic_write(path) as draft:
        try:
            save_file(tensors, draft, {"dualcba": json.dumps(state["meta"])})
        except SafetensorError as error:  # as where the disk is full
            raise OSError(f"{path} cannot be written: {error}") from error


def read_state_file(path: Path, what: str = "saved learner") -> dict[str, Any]:
    """What `write` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected a {what}")
    try:
        with safe_open(str(path), "pt") as file:
            meta = (file.metadata() or {}).get("dualcba")
            if meta is None:
                raise ValueError(f"{path} is not a {what}")
            names = list(file.keys())
            return {"tensors": {k: file.get_tensor(k) for k in names}, "meta": json.loads(meta)}
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a {what}: {error}") from error
