"""Where training batches come from: data that lie on the device, or data read ahead of the step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.data.dataset import Dataset

AHEAD = 16
"""How many batches are read before they are asked for."""

ROOM = 0.5
"""Data that take more than this share of a GPU's free memory stay where they are."""


def resident(data: Dataset, device: torch.device) -> bool:
    """Whether the training samples shall lie on the device as a whole.

    On a GPU where they fit; on a CPU unless they are memory-mapped.
    """
    if device.type != "cuda":
        return not data.mapped
    free, _ = torch.cuda.mem_get_info(device)
    return bool(data.train_x.nbytes < ROOM * free)


def read_ahead(
    x: Tensor, y: Tensor, plan: NDArray[np.int64], *, ahead: int = AHEAD
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of memory-mapped samples: a thread gathers them while earlier ones are learnt.

    `plan` is (steps, batch_size) rows, as `batches` gives them.

    >>> x, y = torch.arange(6)[:, None], torch.arange(6)
    >>> [b.tolist() for _, b in read_ahead(x, y, np.array([[5, 0], [3, 1]]))]
    [[5, 0], [3, 1]]
    """

    def gather(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rows)
        return x[index], y[index]

    with ThreadPoolExecutor(1, "read-ahead") as reader:
        waiting = deque(reader.submit(gather, rows) for rows in plan[:ahead])
        for k in range(len(plan)):
            batch = waiting.popleft().result()
            if k + ahead < len(plan):
                waiting.append(reader.submit(gather, plan[k + ahead]))
            yield batch
