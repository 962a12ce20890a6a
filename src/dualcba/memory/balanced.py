"""The class-balanced memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.memory.base import Indices, Memory

KEY_BITS, LABEL_BITS = 40, 20
EMPTY = 2**62  # the key of an empty row


class Balanced(Memory):
    """Class-balanced sampling: classes share the rows evenly, each with a uniform sample.

    Each sample of the stream has a random key, drawn before the step. The *rank* of a sample is its
    position by key within its class. The memory stores the `size` samples with the lowest (rank,
    label). So the number of rows of two classes differs by at most one, unless one of them has too
    few samples. A dropped sample would never be among the lowest again, so the stored samples of a
    class are a uniform sample of all its samples, in any order of the stream. Labels stay on the
    device: `write` selects the samples by one sort. A sample with a key equal to `size` is not
    stored.

    >>> memory = Balanced(4, (1,))
    >>> rng = np.random.default_rng(0)
    >>> for labels in ([0, 0, 0, 0, 0], [1, 2]):
    ...     y = torch.tensor(labels)
    ...     memory.write(torch.from_numpy(memory.slots(len(y), rng)), y[:, None].byte(), y, {})
    >>> sorted(memory.y[:4].tolist())
    [0, 0, 1, 2]
    """

    keys: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("keys", torch.full((self.size + 1,), EMPTY))

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw random keys above `size`; `write` chooses the rows."""
        self.seen += n
        return rng.integers(self.size + 1, 1 << KEY_BITS, n)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Store each kept sample in an empty row or in the row of a dropped sample."""
        rows = self._rows(slots, y)
        super().write(rows, x, y, columns)
        self.keys.index_copy_(0, rows, slots)

    def _rows(self, keys: Tensor, y: Tensor) -> Tensor:
        """Return the row of each of n new samples; `size` means not stored."""
        size, n = self.size, len(y)
        keys = torch.cat([self.keys[:size], keys])  # (size + n,) stored and new samples
        labels = torch.cat([self.y[:size], y])
        index = torch.arange(size + n, device=y.device)
        empty, excluded = keys == EMPTY, keys == size
        void = empty | excluded

        order = torch.where(void, EMPTY, (labels << KEY_BITS) + keys).argsort()
        ordered = torch.where(void, 1 << LABEL_BITS, labels)[order]
        first = torch.searchsorted(ordered, ordered)  # the start of each sample's class
        rank = torch.empty_like(order).index_copy_(0, order, index - first)
        score = torch.where(empty, EMPTY - index, (rank << LABEL_BITS) + labels)
        score = torch.where(excluded, EMPTY + index, score)

        dropped = score.topk(n).indices.sort().values  # ascending: stored rows, then new samples
        kept = torch.ones_like(empty).index_fill_(0, dropped, False)[size:]
        return torch.where(kept, dropped[kept.cumsum(0) - 1], size)
