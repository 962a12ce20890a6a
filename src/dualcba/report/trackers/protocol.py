"""What a tracker is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker names it."""

    out: Path
    """The folder of the results; a tracker that writes files writes them there."""

    name: str
    spec: Mapping[str, Any]

    @property
    def project(self) -> str:
        """The name under which a tracker shows the runs of one folder together."""
        return self.out.resolve().name or "dualcba"


class Tracker(Protocol):
    """Logs one run. Whatever it raises is printed once, and the runs go on without it."""

    def start(self, run: TrackedRun) -> None:
        """Begin a run, with its spec."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at a step; steps need not be in order."""

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """End the run: its scores, and its figures as PNG. Both are empty if it did not finish."""
