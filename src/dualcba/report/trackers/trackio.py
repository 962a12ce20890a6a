"""trackio: `trackio show --project NAME`, with `TRACKIO_DIR=OUT/trackio` unless it was set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from PIL import Image

from dualcba.report.trackers.protocol import TrackedRun


class Trackio:
    """Logs a run when it is complete: trackio has one open run at a time."""

    def start(self, run: TrackedRun) -> None:
        """Keep the run for `finish`. The folder is read by trackio when it is first imported."""
        os.environ.setdefault("TRACKIO_DIR", str(run.out.resolve() / "trackio"))
        self.run = run
        self.waiting: list[tuple[int, Mapping[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep values for `finish`."""
        self.waiting.append((step, values))

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """Begin the run, log everything that was kept, the scores and the figures, and end it."""
        import trackio

        name, spec = self.run.name, dict(self.run.spec)
        settings: dict[str, Any] = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        run = trackio.init(project=self.run.project, name=name, config=spec, **settings)
        last = 0
        for step, values in self.waiting:
            run.log(dict(values), step=step)
            last = max(last, step)
        if scores:
            images = {f"figure/{k}": Image.open(BytesIO(png)) for k, png in figures.items()}
            shown = {name: trackio.Image(image) for name, image in images.items()}
            run.log({**scores, **shown}, step=last)
        trackio.finish()  # also forgets the run, which it would end again at exit
