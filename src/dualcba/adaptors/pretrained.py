"""Files with a class-agnostic part ν, trained on one dataset and used on another.

ν depends only on the total probability of old and of new classes, so it fits any network and any
number of classes (Section IV, transferability). A file records how its part was trained.
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
from dualcba.io import user_path
from dualcba.options import BALANCED

SHIPPED: dict[str, Path] = {
    "dual-cba": Path(__file__).with_name("agnostic.safetensors"),
    BALANCED: Path(__file__).with_name("agnostic-balanced.safetensors"),
}
"""The file that `"pretrained"` stands for, by kind of adaptor; written by `tools/pretrain.py`."""

KIND = "class-agnostic part"

FLAGS = ("divide", "counts", "strength")
"""The boolean options of the adaptor that a file records; they must match when it is loaded."""


@dataclass(frozen=True)
class Loaded:
    """A frozen part ν, the adaptor options it was trained with, and how it was trained."""

    part: ClassAgnostic
    space: str
    divide: bool
    counts: bool
    strength: bool
    provenance: dict[str, Any]

    def check(self, adaptor: Adaptor) -> None:
        """Raise unless the adaptor has the options that ν was trained with."""
        for field in ("space", *FLAGS):
            given, wanted = getattr(adaptor, field), getattr(self, field)
            if given != wanted:
                raise ValueError(expected(field, given, f"{wanted!r}, as in the loaded {KIND}"))


def save_agnostic(adaptor: Adaptor, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write the part ν of an adaptor to a safetensors file, with its provenance in the header."""
    if adaptor.agnostic is None:
        raise ValueError(f"the adaptor has no {KIND}, expected one to save")
    meta = {
        "kind": KIND,
        "space": adaptor.space,
        **{flag: getattr(adaptor, flag) for flag in FLAGS},
        "provenance": dict(provenance),
    }
    write_state_file(Path(path), {"tensors": adaptor.agnostic.state_dict(), "meta": meta})


def load_agnostic(path: str | Path, kind: str = "dual-cba") -> Loaded:
    """Read a frozen ν from a file written by `save_agnostic`.

    `"pretrained"` stands for the file in the package that was made for this kind of adaptor.
    """
    file = SHIPPED[kind] if str(path) == "pretrained" else user_path(path)
    if str(path) == "pretrained" and not file.is_file():
        raise FileNotFoundError(f"{file} is missing, expected the pretrained {KIND}")
    state = read_state_file(file, KIND)
    meta, tensors = state["meta"], state["tensors"]
    if not isinstance(meta, dict) or meta.get("kind") != KIND:
        raise ValueError(f"{file} does not contain a {KIND}")
    hidden = tensors.get("net.hidden.bias", torch.empty(0))
    flags = {flag: meta.get(flag, False) for flag in FLAGS}  # early files record only the first
    more = {flag: flags[flag] for flag in ("counts", "strength")}
    part = ClassAgnostic(max(1, hidden.numel()), torch.Generator(), **more)
    try:
        check_same_layout(part.state_dict(), tensors)
    except ValueError as error:
        raise ValueError(f"{file} does not contain a valid {KIND}: {error}") from error
    part.load_state_dict(tensors)
    part.requires_grad_(False)
    return Loaded(part, meta["space"], **flags, provenance=meta["provenance"])
