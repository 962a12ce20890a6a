"""Pickles of learners of earlier versions, whose predictor had the parts below in one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dualcba.prediction.class_means import ClassMeans
from dualcba.prediction.memory_pass import MemoryPass
from dualcba.prediction.memory_statistics import MemoryStatistics

Made = TypeVar("Made")

OF_PREDICTOR = (
    "context", "method", "precision", "engine", "adaptor", "trunk", "readout", "refresh",
    "seen_only", "flip", "ibn", "means", "_running", "_depth", "_training",
)  # fmt: skip
OF_PASS = (
    "context", "method", "forward_pass", "precision", "engine", "average", "augment", "layers",
)  # fmt: skip
OF_STATISTICS = (
    "context", "method", "engine", "tasks", "rows", "seed", "memory_pass", "layers", "moving",
    "_estimated", "_estimated_at", "_followed_at", "_matrices",
)  # fmt: skip
OF_MEANS = ("context", "method", "precision", "engine", "nearest", "rows", "moving", "_cached")


def split_predictor(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a `Predictor` that has those of an earlier version."""
    names = {"nearest": "_nearest", "rows": "_rows", "_cached": "_means"}
    found = {**state, **{new: state[old] for new, old in names.items()}}
    found["memory_pass"] = _made(MemoryPass, OF_PASS, found)
    found["ibn"] = _made(MemoryStatistics, OF_STATISTICS, found)
    by_means = found["nearest"] is not None
    found["means"] = _made(ClassMeans, OF_MEANS, found) if by_means else None
    return {name: found[name] for name in OF_PREDICTOR}


def _made(cls: type[Made], names: tuple[str, ...], found: Mapping[str, Any]) -> Made:
    made = cls.__new__(cls)
    vars(made).update({name: found[name] for name in names})
    return made
