"""Signals such as Ctrl-C that arrive while a step changes the learner take effect after it."""

from __future__ import annotations

import _thread
import signal
import threading
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))
DELAY = 0.001  # seconds until a signal is sent again, so that it arrives outside the step

_functions: Any = import_module("_signal")  # `signal` without enums, which take most of its time
_main = threading.main_thread()

BY_LOOP = "_sighandler_noop"
"""The handler of a signal that asyncio's loop reads from a file descriptor.

The loop reads it after the step anyway, and would read a signal that is sent again a second time.
"""


class Interrupts:
    """A context in which signals can be deferred: from a call of `defer` to the end of the context.

    Before `defer`, a signal interrupts the work as usual, and the caller undoes it. After it,
    SIGINT and SIGTERM wait, and are sent again when the context has ended. So whoever called gets
    an exception only for work that was undone. Only the main thread receives signals; in other
    threads nothing is deferred. A context inside another one ends the deferral of both.
    """

    def __init__(self) -> None:
        self._before: list[tuple[int, Any]] = []
        self._pending: list[int] = []

    def __enter__(self) -> None:
        pass

    def defer(self) -> None:
        """Let signals wait from now on."""
        if self._before or threading.current_thread() is not _main:
            return
        for number in SIGNALS:
            handler = _functions.getsignal(number)
            if callable(handler) and getattr(handler, "__name__", "") != BY_LOOP:
                self._before.append((number, handler))
                _functions.signal(number, self._wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if not self._before or threading.current_thread() is not _main:
            return
        while self._before:
            _functions.signal(*self._before.pop())
        while self._pending:
            threading.Timer(DELAY, send_to_main_thread, [self._pending.pop()]).start()

    def _wait(self, number: int, frame: FrameType | None) -> None:
        if number not in self._pending:
            self._pending.append(number)


def send_to_main_thread(number: int) -> None:
    """Send a signal to the main thread; one to another thread would not wake it.

    A blocked signal would never arrive, and workers of Ray have SIGINT blocked: they are cancelled
    by a call of the handler. So here its handler is called, too. Threads inherit what is blocked
    from the thread that starts them, which is the main one.
    """
    if not hasattr(signal, "pthread_kill") or _main.ident is None:  # Windows
        signal.raise_signal(number)
    elif number in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        _thread.interrupt_main(signal.Signals(number))
    else:
        signal.pthread_kill(_main.ident, number)


interrupts = Interrupts()
"""The one of this process: signals are sent to processes."""
