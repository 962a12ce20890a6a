"""The locks of runs in progress, by which other processes tell them from planned ones."""

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
    """Holds a lock in the folder of each run in progress; it ends with the process, however that.

    A run goes on without a lock if another process holds it or if it cannot be written.
    """

    def __init__(self, out: Path, make: Make) -> None:
        self.out, self._make = out, make
        self._held: dict[str, ExitStack] = {}

    def make(self, spec: Spec, data: Dataset, hardware: Hardware, *, alone: bool) -> Run:
        """Make a run that is in progress until it is released."""
        run = self._make(spec, data, hardware, alone=alone)
        self._held[spec.name] = _lock(run_folder(self.out, spec))
        return run

    def release(self, spec: Spec) -> None:
        """Release a run that is complete or has failed."""
        if spec.name in self._held:
            self._held.pop(spec.name).close()

    def close(self) -> None:
        """Release the runs that were interrupted."""
        for held in self._held.values():
            held.close()
        self._held = {}


def _lock(folder: Path) -> ExitStack:
    """Take the lock of a run; where it ends, the file goes, and the folder if nothing is in it."""
    held = ExitStack()
    with suppress(OSError):
        held.enter_context(only_process(folder / LOCK))
        held.callback(_remove, folder)
    return held


def _remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / LOCK).unlink()
        folder.rmdir()
