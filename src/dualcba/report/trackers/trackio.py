"""trackio: `trackio show --project NAME`; sets `TRACKIO_DIR=OUT/trackio` unless it is set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from PIL import Image

from dualcba.report.trackers.protocol import TrackedRun


class Trackio:
    """Logs a run when it is complete, since trackio can have only one open run."""

    def start(self, run: TrackedRun) -> None:
        """Store the run for `finish`; set the folder, which trackio reads on import."""
        os.environ.setdefault("TRACKIO_DIR", str(run.out.resolve() / "trackio"))
        self.run = run
        self.waiting: list[tuple[int, Mapping[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Store values for `finish`."""
        self.waiting.append((step, values))

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """Log the stored values, the scores and the figures as one run."""
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
        trackio.finish()  # else trackio would end the run again at exit
