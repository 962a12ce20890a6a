"""Signals that end a run take effect between two steps, so that it can leave a checkpoint."""

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
"""Seconds until a signal takes effect even if the step is not complete."""


class Stop:
    """A request to stop: the first of SIGINT, SIGTERM and SIGHUP that arrives while listening.

    The loop over steps looks at `requested`, calls `heed` before it saves anything, and then
    `take_effect`, which does what the signal does otherwise. A second signal takes effect at once;
    so does the first one if the step is too long.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal waits."""
        return self._number is not None

    @contextmanager
    def listening(self, signals: Sequence[int] | None = None) -> Iterator[None]:
        """Let signals wait inside, if Python handles them; only the main thread receives any.

        One that still waits at the end takes effect then. `signals` are others than those above.
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
        """Let what follows the step, such as saving a large network, take as long as it needs."""
        if self.requested:
            self._timer.cancel()

    def take_effect(self) -> None:
        """Handle the signal that waits as it would be handled otherwise."""
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
"""That of this process, because signals are."""
