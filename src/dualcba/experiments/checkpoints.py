"""Write checkpoints of runs in progress, and continue runs from them.

A step never waits for a disk: the state is copied to host memory between two steps, and a thread
writes the copy. On a GPU the copy goes to pinned memory, asynchronously, on the engine's stream.
Only the training thread calls CUDA, even to free the copy, because calls from another thread would
break the capture of a graph.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualcba.checkpoint import write_state_file
from dualcba.data import Dataset
from dualcba.errors import reason
from dualcba.experiments.run import Run
from dualcba.experiments.run_state import UNFIT, load_run_state, read_run_state, run_state
from dualcba.experiments.spec import Spec
from dualcba.experiments.store import run_folder
from dualcba.options import Hardware
from dualcba.options.values import Interval

KEPT = 2
"""Number of checkpoints to keep per run."""

NAME = re.compile(r"checkpoint-(\d{1,18})\.safetensors")
"""File names of checkpoints, with the number of batches so far."""

_writing = threading.Lock()  # a process writes one file at a time


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder of a run, newest first."""
    found = [(int(m[1]), p) for p in folder.glob("checkpoint-*") if (m := NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def remove_checkpoints(folder: Path, keep: int = 0) -> None:
    """Remove the checkpoints in the folder of a run, except the `keep` newest."""
    for path in checkpoint_paths(folder)[keep:]:
        with suppress(OSError):  # removed by another process
            path.unlink()


def resumed(make: Callable[[], Run], folder: Path, tell: Callable[[str], None]) -> Run:
    """Return a new run, continued from the newest valid checkpoint in its folder, if any.

    `tell` is called with a line on the checkpoint that is used, and on each that cannot be used.
    """
    run, paths = make(), checkpoint_paths(folder)
    for path in paths:
        try:
            load_run_state(run, read_run_state(path, run.spec, run.data.origin))
        except UNFIT as error:
            tell(f"{_unfit(path, error)}; it is skipped")
            run = make()  # the failed load may have changed the run
            continue
        taken = f"{run.taken} of {run.total} batches"
        tell(f"{run.spec.name} continues after {taken}, from {path.name}")
        return run
    if paths:
        tell(f"{run.spec.name} has no usable checkpoint; it starts from the beginning")
    return run


def _unfit(path: Path, error: Exception) -> str:
    why = " ".join(reason(error).split())
    return why if str(path) in why else f"{path} cannot be used: {why}"


# ---------------------------------------------------------------------- copies on the host


@dataclass
class StateCopy:
    """A copy of the state of a run on the host, which the device may still be making."""

    state: dict[str, Any]
    refused: Tensor | None
    """Recent losses on the device; NaN marks a refused step that was not reported yet."""

    event: torch.cuda.Event | None

    @property
    def ready(self) -> bool:
        """Whether the copy is complete."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    @property
    def sound(self) -> bool:
        """Whether it has no refused step, whose pending error would be lost."""
        return self.refused is None or bool(self.refused.isfinite().all())


def copy_state(run: Run) -> StateCopy:
    """Copy the state of a run to the host, without waiting for the device."""
    state, parts = run_state(run, to_host), run.learner.parts
    late = parts.loss_monitor.on_device and parts.guard.on_outlier == "raise"
    with run.engine.scope():
        refused = to_host(parts.loss_monitor.values) if late else None
        if run.learner.device.type != "cuda":
            return StateCopy(state, refused, None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return StateCopy(state, refused, event)


def to_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host; from a GPU, it is asynchronous on the current stream."""
    if not tensor.is_cuda:
        return tensor.clone()
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


# ---------------------------------------------------------------------- when they are written


class Keeper:
    """Writes checkpoints of one run in progress, one at a time.

    `every` is the interval. `tell` is called with a line if a checkpoint cannot be written.
    """

    def __init__(
        self, run: Run, folder: Path, every: Interval, tell: Callable[[str], None]
    ) -> None:
        self.run, self.folder, self.every, self.tell = run, folder, every, tell
        self._copied: StateCopy | None = None  # being copied
        self._written: StateCopy | None = None  # being written; the training thread frees it
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._begin_interval()

    def _begin_interval(self) -> None:
        steps, seconds = self.every.steps, self.every.seconds
        self._due_at = time.monotonic() + (seconds or 0.0)
        self._due_after = self.run.taken + (steps or 0)

    def due_now(self) -> None:
        """End the interval with the next step."""
        self._due_at, self._due_after = 0.0, 0

    @property
    def due(self) -> bool:
        """Whether the interval has passed."""
        return self.run.taken >= self._due_after and time.monotonic() >= self._due_at

    def after_step(self) -> None:
        """Copy the state if the interval has passed, and write the copy once it is complete."""
        if self._copied is not None:
            self._write_if_ready()
        elif self._thread is not None:
            self._end_of_write()
        elif self.due:
            self._copy()

    def _copy(self) -> None:
        self._begin_interval()
        try:
            self._copied = copy_state(self.run)
        except (MemoryError, RuntimeError) as error:  # not enough host memory for the copy
            self._report(error)
            return
        self._write_if_ready()

    def _write_if_ready(self) -> None:
        copied = self._copied
        if copied is None or not copied.ready:
            return
        self._copied = None
        if copied.sound:
            self._written = copied
            self._thread = threading.Thread(
                target=self._write, args=(copied,), name="checkpoint", daemon=True
            )
            self._thread.start()

    def _write(self, copied: StateCopy) -> None:
        """Write a file and remove old ones; record an error for `tell`."""
        path = self.folder / f"checkpoint-{copied.state['meta']['taken']:08d}.safetensors"
        try:
            with _writing:
                write_state_file(path, copied.state)
                remove_checkpoints(self.folder, keep=KEPT)
        except OSError as error:
            self._problem = error.strerror or reason(error)
        except Exception as error:
            self._problem = reason(error)

    def _end_of_write(self, wait: float | None = 0.0) -> None:
        """Release the thread if it has ended, and report its error."""
        assert self._thread is not None
        if wait != 0.0:
            self._thread.join(wait)
        if not self._thread.is_alive():
            self._thread = self._written = None
            if self._problem is not None:
                self._report(self._problem)

    def _report(self, why: object) -> None:
        self._problem = None
        self.tell(f"no checkpoint can be written in {self.folder.parent}: {why}; the runs continue")

    def save_now(self) -> None:
        """Write a checkpoint now, and wait until it is written."""
        self.close()
        self._copy()
        self.close()

    def close(self) -> None:
        """Wait until all copies are written."""
        if self._copied is not None:
            if self._copied.event is not None:
                self._copied.event.synchronize()
            self._write_if_ready()
        if self._thread is not None:
            self._end_of_write(wait=None)


class Checkpoints:
    """The checkpoints of the runs in progress below a folder; `every=None` writes none."""

    def __init__(self, out: Path, every: Interval | None) -> None:
        self.out, self.every = out, every
        self._notes: list[str] = []
        self._keepers: dict[int, Keeper] = {}

    def make(self, spec: Spec, data: Dataset, hardware: Hardware, *, alone: bool) -> Run:
        """Make a run, continued from its newest valid checkpoint."""
        folder = run_folder(self.out, spec)
        run = resumed(lambda: Run(spec, data, hardware, alone), folder, self._notes.append)
        if self.every is not None:
            self._keepers[id(run)] = Keeper(run, folder, self.every, self._notes.append)
        return run

    def told(self) -> list[str]:
        """Return and clear the notes for the user."""
        notes, self._notes[:] = self._notes[:], []
        return notes

    def after_step(self, run: Run) -> None:
        """Write a checkpoint if it is due."""
        keeper = self._keepers.get(id(run))
        if keeper is not None:
            keeper.after_step()

    def save_all(self) -> None:
        """Write a checkpoint of each run in progress, and wait until they are written."""
        for keeper in self._keepers.values():
            keeper.save_now()

    def finish(self, run: Run) -> None:
        """Remove the checkpoints of a run whose result is written."""
        keeper = self._keepers.pop(id(run), None)
        if keeper is not None:
            keeper.close()
        remove_checkpoints(run_folder(self.out, run.spec))

    def forget(self, spec: Spec) -> None:
        """Write no more checkpoints of a failed run; keep the existing ones."""
        for key, keeper in list(self._keepers.items()):
            if keeper.run.spec is spec:
                self._keepers.pop(key).close()

    def close(self) -> None:
        """Wait until all checkpoints are written."""
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers = {}
