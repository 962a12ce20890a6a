"""Weights & Biases, offline unless `$WANDB_MODE` is set; `wandb sync OUT/wandb/*` uploads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import wandb
from PIL import Image

from dualcba.report.trackers.protocol import TrackedRun


class WeightsAndBiases:
    """Logs to its own wandb run, so several can be open at a time."""

    def start(self, run: TrackedRun) -> None:
        """Begin a run; the spec is its configuration."""
        run.out.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            project=run.project,
            name=run.name,
            dir=str(run.out),
            config=dict(run.spec),
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values by training step."""
        self.run.log({"step": step, **values})

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """Log the figures, write the scores into the summary, and end the run."""
        images = {f"figure/{k}": wandb.Image(Image.open(BytesIO(v))) for k, v in figures.items()}
        if images:
            self.run.log(images)
        self.run.summary.update(dict(scores))
        self.run.finish(exit_code=0 if scores else 1)
