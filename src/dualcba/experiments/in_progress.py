"""Locks of runs in progress, which tell other processes that a run is not only planned."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

from dualcba.data import Dataset
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import Make
from dualcba.experiments.spec import Spec
from dualcba.experiments.store import LOCK, run_folder
from dualcba.io import only_process
from dualcba.options import Hardware


class InProgress:
    """Holds a lock in the folder of each run in progress, until the run or the process ends.

    A run continues without a lock if another process holds it, or if it cannot be written.
    """

    def __init__(self, out: Path, make: Make) -> None:
        self.out, self._make = out, make
        self._held: dict[str, ExitStack] = {}

    def make(self, spec: Spec, data: Dataset, hardware: Hardware, *, alone: bool) -> Run:
        """Make a run, and hold its lock until it is released."""
        run = self._make(spec, data, hardware, alone=alone)
        self._held[spec.name] = _lock(run_folder(self.out, spec))
        return run

    def release(self, spec: Spec) -> None:
        """Release the lock of a complete or failed run."""
        if spec.name in self._held:
            self._held.pop(spec.name).close()

    def close(self) -> None:
        """Release the locks of interrupted runs."""
        for held in self._held.values():
            held.close()
        self._held = {}


def _lock(folder: Path) -> ExitStack:
    """Take the lock of a run; its end removes the file, and the folder if it is empty."""
    held = ExitStack()
    with suppress(OSError):
        held.enter_context(only_process(folder / LOCK))
        held.callback(_remove, folder)
    return held


def _remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / LOCK).unlink()
        folder.rmdir()
