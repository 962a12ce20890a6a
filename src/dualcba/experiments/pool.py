"""Make many runs in this process or in several; write each result when it is complete."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from dualcba.engine import resolve_device
from dualcba.errors import expected
from dualcba.experiments.checkpoints import Checkpoints
from dualcba.experiments.curves import curve_files
from dualcba.experiments.in_progress import InProgress
from dualcba.experiments.processes import (
    end_processes,
    end_with_parent,
    in_main_thread,
    start_process,
)
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import Failed, Load, few_threads, run_all
from dualcba.experiments.spec import Spec
from dualcba.experiments.stopping import stop
from dualcba.experiments.store import PLAN, write_result
from dualcba.experiments.watched import Watched
from dualcba.methods.files import import_again
from dualcba.options import Hardware
from dualcba.options.values import Interval

EVERY = 50
"""Steps between two updates of a run."""

UPDATE_SECONDS = 10.0
"""Largest number of seconds between two updates of a run."""

RUNS_PER_PROCESS = 4
"""Runs per process; a process takes seconds to start."""

MOST_FAILED_STARTS = 8
"""Failed starts of processes in a row before an error, plus two per busy process."""

NAMED = 5
"""The largest number of missing runs that an error names."""

ENDED_TWICE = "their processes were killed twice, perhaps for lack of memory"


@dataclass(frozen=True)
class RunUpdate:
    """The progress of a run: its step, its accuracy so far, and its result once it is written.

    `note` is a line for the user.
    """

    spec: Spec
    step: int
    total: int
    accuracy: float | None = None
    result: dict[str, Any] | None = None
    note: str | None = None


def run_specs(
    specs: Sequence[Spec],
    load: Load,
    hardware: Hardware,
    out: Path,
    *,
    abreast: int = 1,
    every: int = EVERY,
    failed: Failed | None = None,
    checkpoints: Interval | None = None,
    watch: bool = False,
) -> Generator[RunUpdate, None, None]:
    """Run specs in this process, `abreast` of them in turn, and yield their updates.

    There is an update after the first step, after `every` steps or ten seconds, and with the
    result; with `every=0`, only with the result and with notes. `failed` is as in `run_all`. A run
    continues from its newest checkpoint below `out`; `checkpoints` is the interval of new ones.
    With `watch`, runs have monitors, see `Watched`.
    """
    kept, due = Checkpoints(out, checkpoints), Due(every)
    watched = Watched(out, kept.make, on=watch)
    marked = InProgress(out, watched.make)

    def report(spec: Spec, error: Exception) -> None:
        kept.forget(spec)
        watched.forget(spec)
        marked.release(spec)
        assert failed is not None
        failed(spec, error)

    told, make = None if failed is None else report, marked.make
    with few_threads(specs), closing(marked), closing(kept), closing(watched):
        for run, done in run_all(specs, load, hardware, abreast=abreast, failed=told, make=make):
            if done:
                watched.finish(run)
                try:
                    result = run.result()
                    write_result(out, run.spec, result, run.files() | curve_files(result))
                except Exception as error:  # a full disk, for example
                    if told is None:
                        raise
                    told(run.spec, error)
                    continue
                kept.finish(run)
                marked.release(run.spec)
            else:
                kept.after_step(run)
            yield from _notes(run, kept)
            if done:
                yield RunUpdate(run.spec, run.total, run.total, run.evaluator.accuracy(), result)
                del run  # free its memory before the next run is made
            elif due(run.taken):
                accuracy = None if run.taken == 1 else run.evaluator.accuracy()
                yield RunUpdate(run.spec, run.taken, run.total, accuracy)


def _notes(run: Run, kept: Checkpoints) -> Iterator[RunUpdate]:
    """Yield notes of checkpoints; if a signal requested a stop, save all runs first, then stop."""
    ending = stop.requested
    if ending:
        stop.heed()
        kept.save_all()
    for note in kept.told():
        yield RunUpdate(run.spec, run.taken, run.total, note=note)
    if ending:
        stop.take_effect()


@dataclass
class Due:
    """Decides when to yield an update: after the first step, `every` steps or some seconds.

    Never with `every=0`.
    """

    every: int
    last: float = field(default_factory=time.monotonic)

    def __call__(self, step: int) -> bool:
        """Return whether to yield an update after this step."""
        if not self.every:
            return False
        now = time.monotonic()
        due = step == 1 or step % self.every == 0 or now - self.last > UPDATE_SECONDS
        self.last = now if due else self.last
        return due


# ---------------------------------------------------------------------- several processes


def process_count(jobs: int | None, runs: int, hardware: Hardware, *, abreast: int = 1) -> int:
    """Return the number of processes for some runs.

    It is `jobs` if given, one on a GPU, and by default at most one per core on a CPU.

    >>> process_count(None, 1, Hardware(device="cpu")), process_count(3, 2, Hardware(device="cpu"))
    (1, 2)
    """
    cuda = resolve_device(hardware.device).type == "cuda"
    if jobs is None:
        jobs = 1 if cuda or abreast > 1 else min(cores(), runs // RUNS_PER_PROCESS)
    elif jobs > 1 and cuda:
        raise ValueError(expected("jobs", jobs, "1 on a GPU, where --abreast runs side by side"))
    return max(1, min(jobs, runs))


def cores() -> int:
    """Return the number of cores that this process may use."""
    known = getattr(os, "sched_getaffinity", None)
    return len(known(0)) if known else os.cpu_count() or 1


def run_specs_in_processes(
    specs: Sequence[Spec],
    load: Load,
    hardware: Hardware,
    out: Path,
    jobs: int,
    *,
    failed: Failed | None = None,
    checkpoints: Interval | None = None,
    watch: bool = False,
) -> Generator[RunUpdate, None, None]:
    """Run specs in several processes, one run at a time in each; `load` must be picklable.

    A result does not depend on the other runs, except for rounding: the number of threads per
    process may change the last bits of large networks. Closing the generator ends the processes. If
    a process is killed, its run is repeated once, after the other runs. If that fails too, the
    other runs continue, and a ChildProcessError that names the run is raised at the end. `failed`
    is as in `run_all`, `checkpoints` and `watch` are as in `run_specs`.
    """
    threads = max(1, min(torch.get_num_threads(), cores() // jobs))
    run: RunOne = partial(
        run_specs, load=load, hardware=hardware, out=out, checkpoints=checkpoints, watch=watch
    )
    with _pool(list(specs), (run, threads, checkpoints is not None)) as pool:
        pool.start(jobs)
        while pool.busy:
            for worker in pool.ready():
                try:
                    update = worker.receive()
                except Exception as error:
                    if failed is None:
                        raise
                    failed(worker.spec, error)
                    pool.give_next(worker)
                    continue
                if isinstance(update, RunUpdate):
                    yield update
                pool.handle(worker, update)
    if pool.lost:
        raise ChildProcessError(missing_runs(pool.lost, len(specs), out, ENDED_TWICE))


class _Life(Enum):
    """The start or the end of a process."""

    STARTED = 1
    ENDED = 2


@dataclass(eq=False)
class _Worker:
    """A process, the connection to it and the spec that it runs."""

    process: BaseProcess
    connection: Connection
    spec: Spec

    def send(self, spec: Spec | None) -> None:
        """Send a spec, or None to end the process."""
        with suppress(OSError):  # `receive` reports a process that has died
            self.connection.send(spec)

    def receive(self) -> RunUpdate | _Life:
        """Return the next update, or the start or end of the process; raise its error."""
        try:
            update = self.connection.recv()
        except (EOFError, OSError):
            return _Life.ENDED
        if isinstance(update, BaseException):
            raise update
        assert isinstance(update, RunUpdate | _Life)
        return update


@dataclass
class _Pool:
    """Worker processes, waiting specs, and specs whose processes were killed."""

    waiting: list[Spec]
    given: tuple[Any, ...]
    busy: list[_Worker] = field(default_factory=list)
    processes: list[BaseProcess] = field(default_factory=list)
    repeated: list[Spec] = field(default_factory=list)
    lost: list[Spec] = field(default_factory=list)
    failed_starts: int = 0
    """Processes that ended since the last successful start."""

    def start(self, count: int) -> None:
        """Start `count` processes, but not more than there are specs."""
        for _ in range(min(count, len(self.waiting))):
            process, connection = start_process(_worker, *self.given, in_main_thread())
            self.processes.append(process)
            self.busy.append(_Worker(process, connection, self.waiting.pop(0)))
            self.busy[-1].send(self.busy[-1].spec)

    def ready(self) -> list[_Worker]:
        """Wait for busy processes that have sent a message or ended."""
        ready = wait([worker.connection for worker in self.busy])
        return [worker for worker in self.busy if worker.connection in ready]

    def handle(self, worker: _Worker, update: RunUpdate | _Life) -> None:
        """Send the next spec to a process with a complete run; replace a process that ended."""
        if update is _Life.STARTED:
            self.failed_starts = 0
        elif update is _Life.ENDED:
            self.replace(worker)
        elif isinstance(update, RunUpdate) and update.result is not None:
            self.give_next(worker)

    def give_next(self, worker: _Worker) -> None:
        """Send the next spec to a process; end it if there is none."""
        if self.waiting:
            worker.spec = self.waiting.pop(0)
            worker.send(worker.spec)
        else:
            worker.send(None)
            self.busy.remove(worker)

    def replace(self, worker: _Worker) -> None:
        """Start another process for one that has died; its spec is repeated once, at the end."""
        self.busy.remove(worker)
        worker.connection.close()
        self.failed_starts += 1
        if self.failed_starts > MOST_FAILED_STARTS + 2 * len(self.busy):
            raise ChildProcessError(
                f"{self.failed_starts} processes ended while they started, expected fewer --jobs; "
                'in a script, expected `if __name__ == "__main__":` around the call'
            )
        (self.lost if worker.spec in self.repeated else self.waiting).append(worker.spec)
        self.repeated.append(worker.spec)
        self.start(1)


@contextmanager
def _pool(specs: list[Spec], given: tuple[Any, ...]) -> Iterator[_Pool]:
    """Yield an empty pool; end its processes after the block."""
    pool = _Pool(specs, given)
    try:
        yield pool
    except BaseException:
        end_processes(pool.processes, at_once=True)
        raise
    end_processes(pool.processes, at_once=False)  # each has received None


def missing_runs(lost: Sequence[Spec], runs: int, out: Path, why: str) -> str:
    """Return the error message for runs whose processes were killed too often."""
    names = ", ".join(spec.name for spec in lost[:NAMED])
    more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    again = f"`dualcba resume {out}`" if (out / PLAN).is_file() else "the same command"
    return (
        f"{len(lost)} of {runs} runs are missing: {names}{more}; {why}; the other runs are kept; "
        f"{again} makes the missing runs, perhaps with fewer --jobs"
    )


RunOne = Callable[[Sequence[Spec]], Iterator[RunUpdate]]
"""`run_specs` with the arguments common to all runs of a pool."""


def _worker(
    connection: Connection, run: RunOne, threads: int, listens: bool, by_kernel: bool
) -> None:
    """Receive specs one by one, run them, and send the updates."""
    end_with_parent(by_kernel=by_kernel)
    torch.set_num_threads(threads)
    try:
        with suppress(EOFError, ConnectionError):  # the parent has gone
            connection.send(_Life.STARTED)
            while (spec := connection.recv()) is not None:
                with stop.listening() if listens else nullcontext():
                    _run_and_send(connection, spec, run)
    except SystemExit:  # SIGTERM; drafts are removed, other cleanup of Python can take seconds
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no file is being written


def _run_and_send(connection: Connection, spec: Spec, run: RunOne) -> None:
    """Run a spec and send its updates or its error."""
    try:
        import_again(spec.imports)
        for update in run([spec]):
            connection.send(update)
    except Exception as error:
        connection.send(sendable(error))


def sendable(error: Exception) -> Exception:
    """Return a picklable error with its traceback as a note."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
