"""Trackers: the scores, curves, figures and spec of runs in TensorBoard, MLflow and others.

A tracker is a class with three methods, see `Tracker`. Each has its own file in this folder and
needs the extra of the same name.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from dualcba.errors import install
from dualcba.report.trackers.protocol import TrackedRun, Tracker

__all__ = ["TRACKERS", "TrackedRun", "Tracker", "check_installed", "make_tracker"]

TRACKERS = {
    "tensorboard": ("tensorboard:TensorBoard", ("tensorboard",)),
    "mlflow": ("mlflow:MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("wandb:WeightsAndBiases", ("wandb",)),
    "trackio": ("trackio:Trackio", ("trackio",)),
}
"""Trackers by name: `module:class` in this folder, and the modules that it imports."""


def check_installed(names: list[str]) -> None:
    """Raise a ValueError that says how to install a tracker, if one of its modules is missing."""
    for name in names:
        for module in TRACKERS[name][1]:
            if find_spec(module) is None:
                given = f"track is {name!r} and {module} is missing"
                raise ValueError(f"{given}, expected {install(name)}")


def make_tracker(name: str) -> Tracker:
    """Return a tracker for one run."""
    module, cls = TRACKERS[name][0].split(":")
    tracker: Tracker = getattr(import_module(f"dualcba.report.trackers.{module}"), cls)()
    return tracker
