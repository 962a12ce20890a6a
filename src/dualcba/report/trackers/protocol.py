"""The interface of a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """The name, spec and folder of a run, for a tracker."""

    out: Path
    """The folder of the results; a tracker that writes files writes them there."""

    name: str
    spec: Mapping[str, Any]

    @property
    def project(self) -> str:
        """The name of the group of runs: that of the folder."""
        return self.out.resolve().name or "dualcba"


class Tracker(Protocol):
    """Logs one run. If it raises, it is disabled with a warning, and the runs continue."""

    def start(self, run: TrackedRun) -> None:
        """Begin a run, with its spec."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at a step; steps may come in any order."""

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """End the run: its scores, and its figures as PNG. Both are empty if it did not finish."""
