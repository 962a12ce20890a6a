"""Runs with a monitor that writes to a file in their folder, for `dualcba watch`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dualcba.data import Dataset
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import Make
from dualcba.experiments.spec import Spec
from dualcba.experiments.store import run_folder
from dualcba.monitoring.files import WATCH
from dualcba.monitoring.monitor import Monitor
from dualcba.options import Hardware

EVERY = 5
"""The monitor predicts one of so many batches."""


class Watched:
    """The monitors of the runs in progress below a folder, if `on`."""

    def __init__(self, out: Path, make: Make, *, on: bool) -> None:
        self.out, self._make, self.on = out, make, on
        self._monitors: dict[int, tuple[Run, Monitor]] = {}

    def make(self, spec: Spec, data: Dataset, hardware: Hardware, *, alone: bool) -> Run:
        """Make a run, with a monitor if it is on."""
        run = self._make(spec, data, hardware, alone=alone)
        if not self.on:
            return run
        title = f"{spec.method} · {spec.dataset} · seed {spec.seed}"
        self._monitors[id(run)] = run, Monitor(
            run.learner, every=EVERY, path=run_folder(self.out, spec) / WATCH,
            names=data.class_names, about={"title": title, "total": run.total},
        )  # fmt: skip
        return run

    def finish(self, run: Run) -> None:
        """Write the last numbers of a run."""
        if self.on:
            self._monitors.pop(id(run))[1].close()

    def forget(self, spec: Spec) -> None:
        """Write the last numbers of a failed run."""
        for key, (run, _) in list(self._monitors.items()):
            if run.spec is spec:
                self._end(key, "failed")

    def close(self) -> None:
        """Write the last numbers of interrupted runs."""
        for key in list(self._monitors):
            self._end(key, "stopped")

    def _end(self, key: int, status: str) -> None:
        with suppress(Exception):  # do not hide the error of the run
            self._monitors.pop(key)[1].close(status)
