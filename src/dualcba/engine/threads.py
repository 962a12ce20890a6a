"""The number of threads of torch on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within the context, use so many threads; None leaves their number as it is.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(*, small: bool) -> AbstractContextManager[None]:
    """Return a context with one thread if all networks are small, such as `mlp`.

    More threads would only wait for each other, and their number changes the last bits of results.
    """
    return threads(1 if small else None)
