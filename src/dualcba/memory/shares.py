"""The exemplar memory with equal shares for tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.engine.host_to_device import to_device
from dualcba.memory.base import Indices
from dualcba.memory.exemplars import Exemplars, drawable_rows


class TaskShares(Exemplars):
    """Equal shares of the rows for all tasks, each filled from all training data of the task.

    These data are the task's own samples and the exemplars that were mixed with them, in
    proportion. So old classes get rows in the shares of later tasks too. When a further task needs
    rows, each share drops its last rows. Samples of a task are expected in random order.

    >>> memory = TaskShares(8, (1,))
    >>> for labels in ([0] * 9, [1] * 8):
    ...     y = torch.tensor(labels)
    ...     memory.share(y[:, None].byte(), y)
    >>> memory.y[:8].tolist()  # the second task had eight samples and eight exemplars
    [0, 0, 0, 0, 1, 0, 1, 0]
    """

    owner: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("owner", torch.zeros(self.size + 1, dtype=torch.long))

    @torch.no_grad()
    def share(self, x: Tensor, y: Tensor, again: Callable[[Tensor], Tensor] | None = None) -> None:
        """Fill the share of the task that ends with these samples and its exemplars.

        `again` transforms exemplars that are stored a second time; by default they are unchanged.
        """
        owner = self.owner[: self.filled].cpu().numpy()
        old = drawable_rows(self.filled, self.held_out)
        before = np.bincount(owner)
        after = share_counts(self.size, before, len(y) + len(old))
        starts = before.cumsum() - before
        kept = [start + np.arange(n) for start, n in zip(starts, after, strict=False)]
        x_old, y_old = self.x[: self.filled], self.y[: self.filled]
        own, twice = 2 * self.filled + np.arange(len(y)), self.filled + old
        chosen = np.concatenate([*kept, interleaved(own, twice, int(after[-1]))])
        rows = to_device(torch.from_numpy(chosen), x.device)
        pool_x = torch.cat([x_old, x_old if again is None else again(x_old), x])
        pool_y = torch.cat([y_old, y_old, y])
        self.seen = len(rows)
        self.x[: self.seen], self.y[: self.seen] = pool_x[rows], pool_y[rows]
        tasks = np.arange(len(after)).repeat(after)
        self.owner[: self.seen] = to_device(torch.from_numpy(tasks), x.device)


def share_counts(size: int, counts: Indices, available: int) -> Indices:
    """Return the number of rows of each share after a task with `available` samples has ended.

    `counts` are the rows of the earlier shares. If there are fewer rows than tasks, the first tasks
    have one row each.

    >>> share_counts(10, np.array([5, 5]), 99).tolist()
    [3, 3, 3]
    """
    task = np.arange(len(counts) + 1)
    most = np.where(task < size, max(1, size // len(task)), 0)
    return np.minimum([*counts, available], most)


def interleaved(own: Indices, old: Indices, n: int) -> Indices:
    """Return n rows, in proportion from both, evenly mixed: the first of own, old at a stride.

    >>> interleaved(np.arange(10, 16), np.arange(3), 6).tolist()
    [10, 0, 11, 12, 1, 13]
    """
    n_old = round(n * len(old) / max(1, len(own) + len(old)))
    old = old[np.arange(n_old) * len(old) // max(1, n_old)]
    rows = np.concatenate([own[: n - n_old], old])
    place = np.concatenate([(np.arange(k) + 0.5) / max(1, k) for k in (n - n_old, n_old)])
    return rows[np.argsort(place, kind="stable")]


def task_counter(size: int, held_out: int) -> Callable[[Indices], int]:
    """Return a function that counts the filled rows after each task, from its labels.

    >>> after = task_counter(6, 0)
    >>> after(np.zeros(4, np.int64)), after(np.ones(9, np.int64))
    (4, 6)
    """
    counts = np.zeros(0, np.int64)

    def after(labels: Indices) -> int:
        nonlocal counts
        old = len(drawable_rows(int(counts.sum()), held_out))
        counts = share_counts(size, counts, len(labels) + old)
        counts = np.trim_zeros(counts, "b")  # `owner` does not record last shares without rows
        return int(counts.sum())

    return after
