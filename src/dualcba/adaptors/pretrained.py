"""ν as a file: the class-agnostic part learnt on one dataset, ready to be used on another.

It knows nothing of single classes, only how much mass lies on old and new ones, so it fits any
network and any number of classes (Section IV, transferability). A file says how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dualcba.adaptors.adaptor import Adaptor, ClassAgnostic
from dualcba.checkpoint import check_same_layout, read_state_file, write_state_file
from dualcba.errors import expected

SHIPPED = Path(__file__).with_name("agnostic.safetensors")
"""What `"pretrained"` means; `benchmarks/pretrain.py` makes it."""

KIND = "class-agnostic part"


@dataclass(frozen=True)
class Loaded:
    """A frozen ν, the reading of it that it was trained under, and where it comes from."""

    part: ClassAgnostic
    space: str
    divide: bool
    provenance: dict[str, Any]

    def check(self, adaptor: Adaptor) -> None:
        """Raise unless the adaptor reads ν's outputs as the one that trained it did."""
        for field in ("space", "divide"):
            mine, wanted = getattr(adaptor, field), getattr(self, field)
            if mine != wanted:
                raise ValueError(expected(field, mine, f"{wanted!r}, as the loaded {KIND} has it"))


def save_agnostic(adaptor: Adaptor, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write ν of an adaptor to one safetensors file, with where it comes from in the header."""
    if adaptor.agnostic is None:
        raise ValueError(f"the adaptor has no {KIND}, expected one to save")
    meta = {
        "kind": KIND,
        "space": adaptor.space,
        "divide": adaptor.divide,
        "provenance": dict(provenance),
    }
    write_state_file(Path(path), {"tensors": adaptor.agnostic.state_dict(), "meta": meta})


def load_agnostic(path: str | Path) -> Loaded:
    """Read ν, frozen, from a file that `save_agnostic` wrote; `"pretrained"` is the shipped one."""
    if str(path) == "pretrained" and not SHIPPED.is_file():
        raise FileNotFoundError(f"{SHIPPED} is missing, expected the pretrained {KIND}")
    file = SHIPPED if str(path) == "pretrained" else Path(path).expanduser()
    state = read_state_file(file, KIND)
    meta, tensors = state["meta"], state["tensors"]
    if not isinstance(meta, dict) or meta.get("kind") != KIND:
        raise ValueError(f"{file} holds something else, expected a {KIND}")
    hidden = tensors.get("net.hidden.bias", torch.empty(0))
    part = ClassAgnostic(max(1, hidden.numel()), torch.Generator())
    try:
        check_same_layout(part.state_dict(), tensors)
    except ValueError as error:
        raise ValueError(f"{file} is no {KIND}: {error}") from error
    part.load_state_dict(tensors)
    part.requires_grad_(False)
    return Loaded(part, meta["space"], meta["divide"], meta["provenance"])
