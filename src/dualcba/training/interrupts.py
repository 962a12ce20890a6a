"""Defer signals such as Ctrl-C that arrive while a step changes the learner until it has ended."""

from __future__ import annotations

import _thread
import signal
import threading
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))
DELAY = 0.001  # seconds until a deferred signal is sent again, so that it arrives after the step

_functions: Any = import_module("_signal")  # `signal` without its enums, which are slow
_main = threading.main_thread()

BY_LOOP = "_sighandler_noop"
"""The name of asyncio's handler for signals that its loop reads from a file descriptor.

Such signals are not deferred: the loop reads them after the step anyway, and would read a signal
that is sent again twice.
"""


class Interrupts:
    """A context in which `defer` defers signals until the end of the context.

    Before `defer`, a signal interrupts the work as usual, and the caller undoes the work. After
    `defer`, SIGINT and SIGTERM are held back and sent again when the context has ended. So an
    exception is raised only if the work was undone. Only the main thread receives signals; in other
    threads nothing is deferred. A nested context ends the deferral of the outer one too.
    """

    def __init__(self) -> None:
        self._before: list[tuple[int, Any]] = []
        self._pending: list[int] = []

    def __enter__(self) -> None:
        pass

    def defer(self) -> None:
        """Defer signals from now on."""
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
    """Send a signal to the main thread, because a signal to another thread would not wake it.

    A blocked signal would never arrive, so its handler is called instead. Workers of Ray have
    SIGINT blocked and are cancelled by such a call. This thread has the same signals blocked as the
    main thread, which has started it.
    """
    if not hasattr(signal, "pthread_kill") or _main.ident is None:  # Windows
        signal.raise_signal(number)
    elif number in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        _thread.interrupt_main(signal.Signals(number))
    else:
        signal.pthread_kill(_main.ident, number)


interrupts = Interrupts()
"""The only instance, as signals are sent to the whole process."""
