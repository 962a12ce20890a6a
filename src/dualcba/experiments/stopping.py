"""Delay signals that end a run until the end of a step, so that it can write a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dualcba.experiments.processes import ENDING, in_main_thread
from dualcba.training.interrupts import send_to_main_thread

PATIENCE = 3.0
"""Seconds until a signal takes effect during a step."""


class Stop:
    """A request to stop: the first SIGINT, SIGTERM or SIGHUP that arrives while listening.

    The loop over steps checks `requested`, calls `heed` before it saves anything, and then
    `take_effect`, which calls the original handler. A second signal takes effect immediately, and
    so does the first one after `PATIENCE` seconds.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal is pending."""
        return self._number is not None

    @contextmanager
    def listening(self, signals: Sequence[int] | None = None) -> Iterator[None]:
        """Delay signals inside the block, in the main thread, if they have Python handlers.

        A signal that is pending at the end takes effect then. `signals` replaces the default ones.
        """
        if not in_main_thread() or self._before:
            yield
            return
        found = {number: signal.getsignal(number) for number in signals or (signal.SIGINT, *ENDING)}
        self._before = {n: handler for n, handler in found.items() if callable(handler)}
        try:
            for number in self._before:
                signal.signal(number, self._wait)
            yield
            if self.requested:
                self.take_effect()
        finally:
            self._end()

    def heed(self) -> None:
        """Cancel the time limit, so that saving a large network is not interrupted."""
        if self.requested:
            self._timer.cancel()

    def take_effect(self) -> None:
        """Call the original handler of the pending signal."""
        assert self._number is not None
        self._before[self._number](self._number, None)

    def _wait(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._before[number](number, frame)
        self._number = number
        self._timer = threading.Timer(PATIENCE, send_to_main_thread, [number])
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.heed()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._number, self._before = None, {}


stop = Stop()
"""The instance for this process, since signals are per process."""
