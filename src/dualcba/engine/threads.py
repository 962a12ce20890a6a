"""The number of threads of torch on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


class _Contexts(threading.local):
    """How many contexts this thread is in."""

    depth = 0


class _Counts:
    """How many contexts all threads are in, and the number of threads before the first of them.

    torch has a number for each thread, and a thread begins with the one that was set last, perhaps
    by a context of another thread.
    """

    lock = threading.Lock()
    contexts = 0
    before = 0


_own = _Contexts()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within the context, use so many threads; None leaves their number as it is.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    if count is None:
        yield
        return
    before = _enter(count)
    try:
        torch.set_num_threads(count)
        yield
    finally:
        with _Counts.lock:
            torch.set_num_threads(before)
            _Counts.contexts -= 1
            _own.depth -= 1


def _enter(count: int) -> int:
    """Count a context, and return the number of threads after it."""
    with _Counts.lock:
        before = torch.get_num_threads()
        if not _Counts.contexts:
            _Counts.before = before
        elif not _own.depth and before == count:  # that of another thread's context
            before = _Counts.before
        _Counts.contexts += 1
        _own.depth += 1
    return before


def threads_for(*, small: bool) -> AbstractContextManager[None]:
    """Return a context with one thread if all networks are small, such as `mlp`.

    More threads would only wait for each other, and their number changes the last bits of results.
    """
    return threads(1 if small else None)
