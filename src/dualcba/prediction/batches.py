"""Batch sizes of predictions and of passes over the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

PREDICT_BATCH = 512
"""Samples per batch of a prediction, and of a pass over the memory for a read-out."""

IBN_BATCH = 200
"""Samples per batch of a pass over the memory for IBN statistics."""

IBN_TOGETHER = 5
"""The number of IBN batches that share a forward pass on a GPU."""


def portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Split n rows into batches of about `size`, of which up to `most` share a forward pass.

    For each forward pass, yields the number of earlier batches, the number of batches, and their
    rows. No batch has a single row, because it would have no batch statistics.

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
