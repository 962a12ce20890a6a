"""Runs of many specs, in this process or in several; each result is written once complete."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from dualcba.engine import resolve_device
from dualcba.errors import expected
from dualcba.experiments.scheduler import Load, few_threads, run_all
from dualcba.experiments.spec import Spec
from dualcba.experiments.store import write_result
from dualcba.options import Hardware

EVERY = 50
"""Steps between two updates of a run."""

RUNS_PER_PROCESS = 4
"""Runs that justify one more process, which takes seconds to start."""


@dataclass(frozen=True)
class RunUpdate:
    """The progress of a run and its accuracy so far; its result once it is complete and written."""

    spec: Spec
    step: int
    total: int
    accuracy: float | None = None
    result: dict[str, Any] | None = None


def run_specs(
    specs: Sequence[Spec],
    load: Load,
    hardware: Hardware,
    out: Path,
    *,
    abreast: int = 1,
    every: int = EVERY,
) -> Generator[RunUpdate, None, None]:
    """Run specs in this process, `abreast` of them in turn, and yield their updates.

    There is an update after the first step, after every `every` steps, and with the result; with
    `every=0` only with the result.
    """
    with few_threads(specs):
        for run, done in run_all(specs, load, hardware, abreast=abreast):
            step = run.learner.step
            if done:
                result = run.result()
                write_result(out, run.spec, result, run.files())
                yield RunUpdate(run.spec, run.total, run.total, run.evaluator.accuracy(), result)
                del run  # frees its memory before the next one is made
            elif every and step == 1:
                yield RunUpdate(run.spec, step, run.total)
            elif every and step % every == 0:
                yield RunUpdate(run.spec, step, run.total, run.evaluator.accuracy())


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
    specs: Sequence[Spec], load: Load, hardware: Hardware, out: Path, jobs: int
) -> Generator[RunUpdate, None, None]:
    """Run specs in several processes, one run at a time in each; `load` must be picklable.

    A result does not depend on which other runs there are. Large networks share the cores by
    threads, whose number may change the last bits. Closing the generator ends the processes.
    """
    threads = max(1, min(torch.get_num_threads(), cores() // jobs))
    waiting = list(specs)
    with _workers(jobs, (load, hardware, out, threads)) as connections:
        for connection in connections:
            _send_next(connection, waiting)
        busy = set(connections)
        while busy:
            for connection in busy.intersection(wait(list(busy))):
                update = _receive(connection)
                yield update
                if update.result is not None and not _send_next(connection, waiting):
                    busy.remove(connection)


def _send_next(connection: Connection, waiting: list[Spec]) -> bool:
    """Send the next spec, or None if there is none left; return whether there was one."""
    spec = waiting.pop(0) if waiting else None
    with suppress(ConnectionError):  # `_receive` reports a process that has died
        connection.send(spec)
    return spec is not None


def _receive(connection: Connection) -> RunUpdate:
    """Return the next update of a process; raise what it has raised."""
    try:
        update = connection.recv()
    except (EOFError, ConnectionError):
        raise ChildProcessError(
            "a process with runs was ended from outside, perhaps for its memory; expected fewer "
            "--jobs; the runs that were complete are kept"
        ) from None
    if isinstance(update, BaseException):
        raise update
    assert isinstance(update, RunUpdate)
    return update


@contextmanager
def _workers(jobs: int, given: tuple[Any, ...]) -> Iterator[list[Connection]]:
    """Start processes that wait for specs; yield the connections to them."""
    spawn = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    with _without_interrupts():  # Ctrl-C reaches all processes of a terminal; we end ours below
        for _ in range(jobs):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_worker, args=(theirs, *given), daemon=True)
            process.start()
            theirs.close()
            connections.append(ours)
            processes.append(process)
    try:
        yield connections
    except BaseException:
        for one in processes:
            one.terminate()
        raise
    finally:  # a process that received None exits on its own
        for one in processes:
            one.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C here and in the processes that are started inside."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # signals reach the main thread only
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _worker(
    connection: Connection, load: Load, hardware: Hardware, out: Path, threads: int
) -> None:
    """Run the specs that arrive, one by one, and send the updates back."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that drafts of files are removed
    torch.set_num_threads(threads)
    with suppress(EOFError, ConnectionError):  # the parent has gone
        while (spec := connection.recv()) is not None:
            try:
                for update in run_specs([spec], load, hardware, out):
                    connection.send(update)
            except Exception as error:
                error.add_note(traceback.format_exc())
                connection.send(error)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no file is being written any more
