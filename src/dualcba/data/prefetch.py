"""Read training batches from the device, or ahead of the step from memory-mapped files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data.dataset import Dataset

PREFETCH = 16
"""Number of batches read ahead by default."""

GPU_MEMORY_SHARE = 0.5
"""Largest share of a GPU's free memory that the training samples may take."""


def fits_on_device(data: Dataset, device: torch.device) -> bool:
    """Return whether all training samples should be stored on the device.

    On a GPU: whether they take less than `GPU_MEMORY_SHARE` of the free memory. On a CPU: whether
    they are not memory-mapped.
    """
    if device.type != "cuda":
        return not data.memory_mapped
    free, _ = torch.cuda.mem_get_info(device)
    return bool(data.train_x.nbytes < GPU_MEMORY_SHARE * free)


def prefetch_batches(
    x: Tensor, y: Tensor, rows: NDArray[np.int64], *, prefetch: int = PREFETCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches `(x[rows[k]], y[rows[k]])`, read ahead by a background thread.

    Parameters
    ----------
    x, y
        Samples, usually memory-mapped, and their labels.
    rows
        Sample indices of shape (steps, batch_size), as returned by `batches`.
    prefetch
        Number of batches read ahead.

    >>> x, y = torch.arange(6)[:, None], torch.arange(6)
    >>> [b.tolist() for _, b in prefetch_batches(x, y, np.array([[5, 0], [3, 1]]))]
    [[5, 0], [3, 1]]
    """

    def read(indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(indices)
        return x[index], y[index]

    with ThreadPoolExecutor(1, "prefetch") as reader:
        pending = deque(reader.submit(read, batch) for batch in rows[:prefetch])
        for k in range(len(rows)):
            batch = pending.popleft().result()
            if k + prefetch < len(rows):
                pending.append(reader.submit(read, rows[k + prefetch]))
            yield batch
