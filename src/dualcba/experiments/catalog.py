"""The shape of a paper's table or figure as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dualcba.experiments.spec import Spec


@dataclass(frozen=True)
class Entry:
    """One cell block: what was run, and what the paper says of it."""

    row: str
    column: str
    spec: dict[str, Any]
    norm: str
    paper: dict[str, float | None]


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str
    title: str
    kind: str
    figure: str | None
    scores: tuple[str, ...]
    entries: tuple[Entry, ...]
    note: str


def experiments() -> dict[str, Experiment]:
    """All of them by name."""
    return {}


def matches(result: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether a complete result serves a spec: all fields equal but the seed."""
    if result.get("status") != "complete":
        return False
    wanted = Spec(**spec).to_dict() | {"seed": None}
    return bool(result["spec"] | {"seed": None} == wanted)
