"""Signals such as Ctrl-C that arrive while a step changes the learner take effect after it."""

from __future__ import annotations

import signal
import threading
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))
DELAY = 0.001  # seconds until a signal is sent again, so that it arrives outside the step

_functions: Any = import_module("_signal")  # `signal` without enums, which take most of its time
_main = threading.main_thread()


class Uninterrupted:
    """A context within which SIGINT and SIGTERM are deferred; they are sent again after it.

    So the caller of a step that was completed gets no `KeyboardInterrupt` from it. Only the main
    thread receives signals; in other threads the context does nothing. Contexts may be nested.
    """

    def __init__(self) -> None:
        self._before: list[tuple[int, Any]] = []
        self._depth = 0
        self._pending: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not _main:
            return
        self._depth += 1
        if self._depth == 1:
            for number in SIGNALS:
                handler = _functions.getsignal(number)
                if callable(handler):
                    self._before.append((number, handler))
                    _functions.signal(number, self._defer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if threading.current_thread() is not _main:
            return
        self._depth -= 1
        if self._depth:
            return
        while self._before:
            _functions.signal(*self._before.pop())
        while self._pending:
            threading.Timer(DELAY, signal.raise_signal, [self._pending.pop()]).start()

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if number not in self._pending:
            self._pending.append(number)


uninterrupted = Uninterrupted()
