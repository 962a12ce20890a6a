"""Start and end worker processes, none of which outlives its parent."""

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
"""Seconds for a process to end before it is killed."""

ORPHAN_GRACE = 0.5
"""Seconds for a process to end after its parent has died."""

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>

ENDING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
"""Signals that end a command, like Ctrl-C."""


def start_process(target: Callable[..., None], *given: Any) -> tuple[BaseProcess, Connection]:
    """Start `target(connection, *given)` in a new process; return it and our end of the pipe.

    The target must call `end_with_parent` first.
    """
    spawn = multiprocessing.get_context("spawn")
    with signals_deferred():  # the process inherits the ignored SIGINT, which Ctrl-C sends to all
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=target, args=(theirs, *given), daemon=True)
        process.start()
        theirs.close()
    return process, ours


def end_processes(processes: Iterable[BaseProcess], *, at_once: bool) -> None:
    """Wait for processes to end, and kill them after a timeout; `at_once` terminates them first."""
    known = list(processes)
    with signals_deferred():
        for one in known if at_once else ():
            one.terminate()
        give_up = time.monotonic() + GRACE
        for one in known:
            one.join(max(0.0, give_up - time.monotonic()))
            if one.is_alive():  # for example in a very long operation
                one.kill()
                one.join()


def in_main_thread() -> bool:
    """Return whether this is the main thread, which receives signals."""
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

    A thread watches the parent on every system. On Linux, `by_kernel` makes the kernel kill this
    process as well. The kernel does so when the *thread* that started the process ends, so
    `by_kernel` must be False unless that was the main thread of the parent.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that drafts of files are removed
    for name in ("SIGINT", "SIGHUP"):  # sent to all; the parent ends its processes
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if by_kernel and sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()


def _watch_parent() -> None:
    """Wait for the end of the parent, then end this process by SIGTERM, or else immediately."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while parent.is_alive() and (os.name == "nt" or os.getppid() == parent.pid):
        parent.join(0.5)  # returns as soon as the pipe from the parent is closed
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os._exit(1)  # still in the middle of a long operation
