"""Memories that look at labels or features: class-balanced, and herding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.memory import Indices, Memory

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


class Herding(Memory):
    """Per class the samples whose mean comes nearest to the class's mean, chosen when a task ends.

    Nothing is written while a task runs. Rows lie class by class, each class in the order in which
    its samples were chosen, so that a class gives up its last ones when others need the room.

    Parameters
    ----------
    held_out
        Keep every so-many-th row out of the draws, for validation; 0 for none.
    """

    def __init__(
        self,
        size: int,
        input_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        *,
        held_out: int = 0,
    ) -> None:
        super().__init__(size, input_shape, dtype)
        self.held_out = held_out

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Nowhere."""
        return np.full(n, self.size)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Nothing: `fill` does it."""

    @property
    def validation(self) -> slice:
        """The rows that `draw` leaves out."""
        return slice(self.held_out - 1, self.filled, self.held_out) if self.held_out else slice(0)

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """Rows of n samples, or as many as there are, without replacement."""
        rows = np.delete(np.arange(self.filled), self.validation)
        return rng.choice(rows, min(n, len(rows)), replace=False)

    @torch.no_grad()
    def fill(self, x: Tensor, y: Tensor, features: Callable[[Tensor], Tensor]) -> None:
        """Choose anew: classes among the samples by herding, the others give up their last.

        `features` maps raw samples to (n, d). Waits for the device.
        """
        held_x, held_y = self.x[: self.filled], self.y[: self.filled]
        arrived = set(y.tolist())
        classes = sorted(arrived.union(held_y.tolist()))
        chosen = []
        for i, label in enumerate(classes):
            quota = max(0, -(-(self.size - i) // len(classes)))  # they add up to the size
            own = torch.cat([held_x[held_y == label], x[y == label]])
            if label in arrived:
                own = own[herd(features(own), quota)]
            chosen.append((own[:quota], label))
        self.seen = 0
        for own, label in chosen:
            rows = slice(self.seen, self.seen + len(own))
            self.x[rows], self.y[rows] = own, label
            self.seen = rows.stop


def herd(features: Tensor, count: int) -> Tensor:
    """Rows in herding order: the k-th brings the mean of the first k nearest to the mean of all.

    >>> herd(torch.tensor([[0.0], [1.0], [4.0], [7.0]]), 3).tolist()  # their mean is 3
    [2, 1, 3]
    """
    mean = features.mean(0)
    half = features.square().sum(1) / 2
    missing = mean.clone()  # k · mean − the sum of those chosen
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    order = torch.zeros(min(count, len(features)), dtype=torch.long, device=features.device)
    for k in range(len(order)):
        # nearest to the mean of k is nearest to what is missing
        pick = (features @ missing - half).masked_fill(taken, -torch.inf).argmax().view(1)
        order[k : k + 1] = pick
        taken.index_fill_(0, pick, True)
        missing += mean - features.index_select(0, pick).squeeze(0)
    return order
