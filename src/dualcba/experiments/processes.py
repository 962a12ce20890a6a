"""The life of worker processes: how they start, how they end, and that none outlives its parent."""

from __future__ import annotations

import _thread
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

GRACE = 5.0
"""Seconds that a process has to end on its own before it is killed."""

ORPHAN_GRACE = 0.5
"""Seconds that a process has to end on its own after the death of its parent."""

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

ENDING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
"""Signals that end a command as Ctrl-C does."""


def start_process(target: Callable[..., None], *given: Any) -> tuple[BaseProcess, Connection]:
    """Start `target(connection, *given)` in a new process; return it and our end of the pipe.

    The target must call `end_with_parent` first.
    """
    spawn = multiprocessing.get_context("spawn")
    with signals_deferred():  # the process inherits that Ctrl-C, which reaches all, is ignored
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=target, args=(theirs, *given), daemon=True)
        process.start()
        theirs.close()
    return process, ours


def end_processes(processes: Iterable[BaseProcess], *, at_once: bool) -> None:
    """Wait until processes have ended; `at_once` asks them to. Those that do not end are killed."""
    known = list(processes)
    with signals_deferred():
        for one in known if at_once else ():
            one.terminate()
        give_up = time.monotonic() + GRACE
        for one in known:
            one.join(max(0.0, give_up - time.monotonic()))
            if one.is_alive():  # for example in the middle of a very long operation
                one.kill()
                one.join()


def in_main_thread() -> bool:
    """Return whether this is the main thread, whose end is the end of the process."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Ignore Ctrl-C, and handle SIGTERM and SIGHUP after the block, if Python handles them."""
    if not in_main_thread():
        yield  # signals reach the main thread only
        return
    received: list[int] = []
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in ENDING:
        if callable(signal.getsignal(number)):
            before[number] = signal.signal(number, lambda n, _: received.append(n))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)


# ---------------------------------------------------------------------- inside a worker process


def end_with_parent(*, by_kernel: bool) -> None:
    """End this process when its parent ends, even if the parent is killed.

    A thread notices it on every system. On Linux, `by_kernel` makes the kernel kill this process as
    well. The kernel does so when the *thread* that started this process ends, so it must be False
    unless that was the main thread of the parent.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that drafts of files are removed
    for name in ("SIGINT", "SIGHUP"):  # a terminal sends them to all; the parent ends its processes
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if by_kernel and sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()


def _watch_parent() -> None:
    """Wait for the end of the parent, then end this process: by SIGTERM's handler, or at once."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while parent.is_alive() and (os.name == "nt" or os.getppid() == parent.pid):
        parent.join(0.5)  # returns as soon as the pipe from the parent is closed
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os._exit(1)  # still in the middle of a long operation
