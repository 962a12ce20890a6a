"""The state of modules and optimisers as named tensors, stored in one file without code."""

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
"""Prefixes of the entries that exist at some steps only."""


def collect_tensors(
    modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> Tensors:
    """Return copies of all state, named `<module>.<entry>` and `<optimizer>.<index>.<field>`."""
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
    """Load what `collect_tensors` returned into modules and optimisers."""
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
    """Return the entries whose names start with `<part>.`, without that prefix.

    >>> sorted(entries_of({"a.x": torch.ones(1), "a.y": torch.ones(1), "b.x": torch.ones(1)}, "a"))
    ['x', 'y']
    """
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def check_same_layout(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise unless both have the same entries, each of the same shape and dtype.

    Optional entries may be missing on either side; the samples of a task may differ in shape.
    """
    for name in sorted(own.keys() | given.keys()):
        if name.startswith(OPTIONAL_ENTRIES) and not (name in own and name in given):
            continue
        if name.startswith("task_data."):
            continue
        if name not in given:
            raise ValueError(f"the state has no entry {name!r}, expected {_describe(own[name])}")
        if name not in own:
            raise ValueError(f"the state has an entry {name!r} that this learner does not have")
        if own[name].shape != given[name].shape or own[name].dtype != given[name].dtype:
            found, wanted = _describe(given[name]), _describe(own[name])
            raise ValueError(f"the state's entry {name!r} is {found}, expected {wanted}")


def _describe(t: Tensor) -> str:
    return f"{t.dtype} of shape {tuple(t.shape)}"


def write_state_file(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a safetensors file: `tensors`, and `meta` as JSON in the header."""
    tensors = {k: v.contiguous().cpu() for k, v in state["tensors"].items()}
    with atomic_write(path) as draft:
        try:
            save_file(tensors, draft, {"dualcba": json.dumps(state["meta"])})
        except SafetensorError as error:  # for example when the disk is full
            raise OSError(f"{path} cannot be written: {error}") from error


def read_state_file(path: Path, what: str = "saved learner") -> dict[str, Any]:
    """Return the tensors and the meta data of a file that `write_state_file` wrote.

    `what` describes the expected content in error messages.
    """
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
