"""The number of threads of torch on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_for(*, small: bool) -> Iterator[None]:
    """Within the context, use one thread if all networks are small, such as `mlp`.

    More threads would only wait for each other, and their number changes the last bits of results.

    >>> with threads_for(small=True):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
