"""Set the number of torch's threads on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


class _Contexts(threading.local):
    """The number of contexts that this thread is in."""

    depth = 0


class _Counts:
    """The number of contexts that all threads are in, and torch's setting before the first of them.

    torch has a separate setting for each thread. A new thread starts with the setting that was made
    last, perhaps by a context of another thread.
    """

    lock = threading.Lock()
    contexts = 0
    before = 0


_own = _Contexts()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside the context, use `count` threads; None does not change the number.

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
    """Count a context, and return the number of threads to restore after it."""
    with _Counts.lock:
        before = torch.get_num_threads()
        if not _Counts.contexts:
            _Counts.before = before
        elif not _own.depth and before == count:  # set by the context of another thread
            before = _Counts.before
        _Counts.contexts += 1
        _own.depth += 1
    return before


def threads_for(*, small: bool) -> AbstractContextManager[None]:
    """Return a context with one thread if all networks are small, such as `mlp`.

    More threads would not be faster, and their number changes the last bits of results.
    """
    return threads(1 if small else None)
