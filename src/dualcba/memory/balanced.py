"""A class-balanced memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.memory.base import Indices, Memory

KEY_BITS, LABEL_BITS = 40, 20
EMPTY = 2**62  # the key of a row that holds nothing yet


class Balanced(Memory):
    """Classes share the rows evenly, and within a class every sample so far has the same chance.

    Each sample of the stream gets a random key, drawn ahead. Within its class a sample's *rank* is
    its place by key, and the memory keeps the `size` lowest by (rank, label): so no class holds
    more than one sample more than another that has had more to give. What is dropped could never
    have come back, so what a class holds is a uniform draw of all its samples, whatever their
    order. Labels stay on the device: all is decided in `write`, by one sort; there a key equal to
    `size` means that the sample is not wanted.

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
        """Random keys above `size`: who goes where is for `write` to say."""
        self.seen += n
        return rng.integers(self.size + 1, 1 << KEY_BITS, n)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Put each sample that is kept into a free row or that of one dropped for it."""
        rows = self._rows(slots, y)
        super().write(rows, x, y, columns)
        self.keys.index_copy_(0, rows, slots)

    def _rows(self, keys: Tensor, y: Tensor) -> Tensor:
        """Where n samples go, given what is there; `size` means nowhere."""
        size, n = self.size, len(y)
        keys = torch.cat([self.keys[:size], keys])  # (size + n,) all that could be kept
        labels = torch.cat([self.y[:size], y])
        place = torch.arange(size + n, device=y.device)
        empty, unwanted = keys == EMPTY, keys == size
        void = empty | unwanted

        order = torch.where(void, EMPTY, (labels << KEY_BITS) + keys).argsort()
        ordered = torch.where(void, 1 << LABEL_BITS, labels)[order]
        first = torch.searchsorted(ordered, ordered)  # where each one's class begins
        rank = torch.empty_like(order).index_copy_(0, order, place - first)
        score = torch.where(empty, EMPTY - place, (rank << LABEL_BITS) + labels)
        score = torch.where(unwanted, EMPTY + place, score)

        dropped = score.topk(n).indices.sort().values  # first rows, ascending; then new samples
        kept = torch.ones_like(empty).index_fill_(0, dropped, False)[size:]
        return torch.where(kept, dropped[kept.cumsum(0) - 1], size)
