"""TensorBoard: `tensorboard --logdir OUT/tensorboard`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from dualcba.report.trackers.protocol import TrackedRun


class TensorBoard:
    """Writes event files, one folder per run; numbers in double precision."""

    def start(self, run: TrackedRun) -> None:
        """Begin an event file, with the spec as text."""
        self.writer = SummaryWriter(str(run.out / "tensorboard" / run.name))
        self.writer.add_text("spec", f"```json\n{json.dumps(dict(run.spec), indent=1)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step, new_style=True, double_precision=True)

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """Add the scores as scalars, and the figures as images."""
        self.log(0, scores)
        for name, png in figures.items():
            pixels = np.asarray(Image.open(BytesIO(png)).convert("RGB"))
            self.writer.add_image(f"figure/{name}", pixels, dataformats="HWC")
        self.writer.close()
