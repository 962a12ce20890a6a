"""How many samples go through the network at once, in predictions and in passes over the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

PREDICT_BATCH = 512
"""Samples per batch of a prediction, and of a pass for class means."""

IBN_BATCH = 200
"""Samples per batch of the pass over the memory for IBN's statistics."""

IBN_TOGETHER = 5
"""Batches of that pass that go through a GPU at once."""


def portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Split n rows into batches of about `size`, of which up to `most` pass together.

    Yields the number of batches before, the number of batches that pass together, and their rows.
    No batch has a single row, because it would have no batch statistics.

    >>> list(portions(10, 4, 2))
    [(0, 1, slice(0, 4, None)), (1, 2, slice(4, 10, None))]
    """
    parts = min(math.ceil(n / size), n // 2)
    sizes = [len(part) for part in np.array_split(np.arange(n), parts)]
    k = start = 0
    while k < len(sizes):
        groups = min(most, sizes[k:].count(sizes[k]))
        stop = start + groups * sizes[k]
        yield k, groups, slice(start, stop)
        k, start = k + groups, stop
