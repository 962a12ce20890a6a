"""A memory and the current batch as one set of samples, with draws balanced over classes."""

from __future__ import annotations

import torch
from torch import Tensor

from dualcba.memory.base import Memory


class Pool:
    """The filled rows of a memory and the samples of a batch, as one set to draw from.

    Row k < `memory.size` is row k of the memory, and row `memory.size` + k is the k-th sample of
    the batch. Labels stay on the device: shapes do not depend on them.

    Parameters
    ----------
    memory
        The memory.
    filled
        (1,) the number of filled rows of the memory, on the device.
    y
        (n,) the labels of the batch; −1 means no label.
    num_classes
        The number of classes, C.

    >>> from dualcba.memory import Reservoir
    >>> memory = Reservoir(4, (1,))
    >>> memory.y[:3] = torch.tensor([0, 0, 1])
    >>> pool = Pool(memory, torch.tensor([3]), torch.tensor([2, -1, 2]), 4)
    >>> pool.counts.tolist()
    [2, 1, 2, 0]
    >>> rows = pool.balanced_rows(torch.tensor([0.1, 0.2, 0.5, 0.7, 0.9]))
    >>> pool.labels[rows].tolist(), pool.is_new(rows).tolist()
    ([0, 0, 1, 2, 2], [False, False, False, True, True])
    """

    def __init__(self, memory: Memory, filled: Tensor, y: Tensor, num_classes: int) -> None:
        self.memory = memory
        stored = torch.arange(memory.size, device=y.device) < filled
        self.labels = torch.cat([torch.where(stored, memory.y[:-1], -1), y])
        classes = torch.arange(num_classes, device=y.device)
        self.counts = (self.labels[:, None] == classes).sum(0)  # (C,) samples of each class

    def balanced_rows(self, u: Tensor) -> Tensor:
        """Return the rows (n,) selected by numbers u (n,) in [0, 1), evenly over the classes."""
        return balanced_rows(self.labels, self.counts, u)

    def balanced_counts(self) -> Tensor:
        """Return the expected counts (C,) of classes in a balanced draw as large as the pool."""
        present = self.counts > 0
        return present * (self.counts.sum() / present.sum())

    def is_new(self, rows: Tensor) -> Tensor:
        """Return whether the rows are samples of the batch."""
        return rows >= self.memory.size

    def read(self, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the samples, labels and columns of these rows; x are the samples of the batch.

        Samples of the batch have the columns of the memory's spare row.
        """
        size = self.memory.size
        stored, _, columns = self.memory.read(rows.clamp(max=size))
        own = x.index_select(0, (rows - size).clamp(min=0))
        new = self.is_new(rows).view(-1, *[1] * (x.ndim - 1))
        return torch.where(new, own, stored), self.labels[rows], columns


def balanced_rows(labels: Tensor, counts: Tensor, u: Tensor) -> Tensor:
    """Return the rows (n,) selected by numbers u (n,) in [0, 1), evenly over the classes.

    `labels` are those of all samples, −1 for none, and `counts` (C,) the numbers of samples of each
    class. With K classes present, ⌊K·u⌋ selects the class, and the fractional part of K·u selects
    one of its samples. So for uniform u all classes are equally probable, and so are all samples of
    a class. At least one sample must have a label.
    """
    order = torch.where(labels < 0, len(counts), labels).argsort(stable=True)
    first = counts.cumsum(0) - counts  # the position of each class's first sample in that order
    present = (counts > 0).cumsum(0)  # the number of classes present up to each class
    place = u * present[-1]
    slot = torch.minimum(place.long(), present[-1] - 1)
    label = torch.searchsorted(present, slot + 1)
    count = counts[label]
    within = torch.minimum(((place - slot) * count).long(), count - 1)
    return order[first[label] + within]
