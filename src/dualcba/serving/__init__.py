"""Predictions without the learner: snapshots for other threads and processes, exported files."""

from dualcba.serving.export import export_model
from dualcba.serving.folding import fold_normalization
from dualcba.serving.model import Model, frozen_model
from dualcba.serving.reading import load_model
from dualcba.serving.snapshot import Snapshot

__all__ = [
    "Model", "Snapshot", "export_model", "fold_normalization", "frozen_model", "load_model",
]  # fmt: skip
