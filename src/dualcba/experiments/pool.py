"""Runs specs and writes each result as soon as it is there, here or in several processes."""

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
"""Steps between two news of a run."""

WORTH = 4
"""Runs that are worth a process: it takes seconds to begin."""


@dataclass(frozen=True)
class News:
    """How far a run is and how well it does; its result when it is complete and written."""

    spec: Spec
    step: int
    total: int
    accuracy: float | None = None
    result: dict[str, Any] | None = None


def work(
    specs: Sequence[Spec],
    load: Load,
    hardware: Hardware,
    out: Path,
    *,
    abreast: int = 1,
    every: int = EVERY,
) -> Generator[News, None, None]:
    """Run specs in this process, `abreast` of them in turn; with 0, no news before the result."""
    with few_threads(specs):
        for run, done in run_all(specs, load, hardware, abreast=abreast):
            step = run.learner.step
            if done:
                result = run.result()
                write_result(out, run.spec, result, run.files())
                yield News(run.spec, run.total, run.total, run.evaluator.accuracy(), result)
                del run  # before the next one is made
            elif every and step == 1:
                yield News(run.spec, step, run.total)
            elif every and step % every == 0:
                yield News(run.spec, step, run.total, run.evaluator.accuracy())


# ---------------------------------------------------------------------- in several processes


def how_many(jobs: int | None, runs: int, hardware: Hardware, *, abreast: int = 1) -> int:
    """Processes for some runs: as asked; else one on a GPU, and on a CPU one for each core.

    >>> how_many(None, 1, Hardware(device="cpu")), how_many(3, 2, Hardware(device="cpu"))
    (1, 2)
    """
    cuda = resolve_device(hardware.device).type == "cuda"
    if jobs is None:
        jobs = 1 if cuda or abreast > 1 else min(cores(), runs // WORTH)
    elif jobs > 1 and cuda:
        raise ValueError(expected("jobs", jobs, "1 on a GPU, where --abreast runs side by side"))
    return max(1, min(jobs, runs))


def cores() -> int:
    """The cores that this process may use."""
    known = getattr(os, "sched_getaffinity", None)
    return len(known(0)) if known else os.cpu_count() or 1


def work_in_processes(
    specs: Sequence[Spec], load: Load, hardware: Hardware, out: Path, jobs: int
) -> Generator[News, None, None]:
    """The same in several processes, each with one run at a time; `load` must be picklable.

    What a run gives does not depend on who else runs. A large network shares the cores out by
    threads, whose number may change the last bits. If this ends early, so do the processes.
    """
    threads = max(1, min(torch.get_num_threads(), cores() // jobs))
    waiting = list(specs)
    with _workers(jobs, (load, hardware, out, threads)) as lines:
        for line in lines:
            _next(line, waiting)
        busy = set(lines)
        while busy:
            for line in busy.intersection(wait(list(busy))):
                news = _receive(line)
                yield news
                if news.result is not None and not _next(line, waiting):
                    busy.remove(line)


def _next(line: Connection, waiting: list[Spec]) -> bool:
    """Hand on the next spec, or the end."""
    spec = waiting.pop(0) if waiting else None
    with suppress(ConnectionError):  # one that has died is told of when it is asked for news
        line.send(spec)
    return spec is not None


def _receive(line: Connection) -> News:
    try:
        news = line.recv()
    except (EOFError, ConnectionError):
        raise ChildProcessError(
            "a process with runs was ended from outside, perhaps for its memory; expected fewer "
            "--jobs; the runs that were complete are kept"
        ) from None
    if isinstance(news, BaseException):
        raise news
    assert isinstance(news, News)
    return news


@contextmanager
def _workers(jobs: int, given: tuple[Any, ...]) -> Iterator[list[Connection]]:
    """Processes that wait for specs, by our ends of the lines to them."""
    spawn = multiprocessing.get_context("spawn")
    lines: list[Connection] = []
    processes: list[BaseProcess] = []
    with _without_interrupts():  # Ctrl-C reaches all of a terminal's processes; ours end theirs
        for _ in range(jobs):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_worker, args=(theirs, *given), daemon=True)
            process.start()
            theirs.close()
            lines.append(ours)
            processes.append(process)
    try:
        yield lines
    except BaseException:
        for one in processes:
            one.terminate()
        raise
    finally:  # those that were told the end go by themselves
        for one in processes:
            one.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is begun here never hears of Ctrl-C."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread hears of it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _worker(line: Connection, load: Load, hardware: Hardware, out: Path, threads: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves no draft of a file behind
    torch.set_num_threads(threads)
    with suppress(EOFError, ConnectionError):  # nobody is listening any more
        while (spec := line.recv()) is not None:
            try:
                for news in work([spec], load, hardware, out):
                    line.send(news)
            except Exception as error:
                error.add_note(traceback.format_exc())
                line.send(error)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left that could be half done
