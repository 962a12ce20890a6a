"""The exemplar memory, filled by herding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dualcba.engine.host_to_device import to_device
from dualcba.memory.base import Indices
from dualcba.memory.exemplars import Exemplars


class Herding(Exemplars):
    """Exemplars of each class whose mean is close to the class mean, selected when a task ends.

    Rows are sorted by class, and within a class by the order of selection. When new classes need
    rows, the old classes drop their last exemplars.
    """

    @torch.no_grad()
    def fill(
        self, x: Tensor, y: Tensor, features: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Select exemplars of the classes in y by herding, and drop the last exemplars of others.

        `features` maps raw samples to features (n, d); without it, the first samples of each class
        are selected. Waits for the device once, for the labels.
        """
        pool = torch.cat([self.x[: self.filled], x])
        labels = torch.cat([self.y[: self.filled], y]).cpu().numpy()
        classes, arrived = np.unique(labels), np.unique(labels[self.filled :])
        if not len(classes):
            return
        quotas = _quotas(self.size, len(classes))
        rows = {c: np.flatnonzero(labels == c) for c in classes}
        ranked = torch.arange(len(pool), device=pool.device)
        if features is not None:
            groups = [rows[c] for c in arrived]
            ranked, count = self._herding_order(pool, groups, int(quotas.max()), features)
            rows |= {c: len(pool) + k * count + np.arange(count) for k, c in enumerate(arrived)}
        counts = np.minimum(quotas, [(labels == c).sum() for c in classes])
        chosen = np.concatenate([rows[c][:n] for c, n in zip(classes, counts, strict=True)])
        self.seen = len(chosen)
        self.x[: self.seen] = pool[ranked[to_device(torch.from_numpy(chosen), pool.device)]]
        self.y[: self.seen] = to_device(torch.from_numpy(classes.repeat(counts)), pool.device)

    def _herding_order(
        self,
        pool: Tensor,
        groups: Sequence[Indices],
        count: int,
        features: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, int]:
        """Return all rows of the pool, followed by the rows of each group in herding order.

        Also return the number of rows in herding order per group, at most `count`.
        """
        every = torch.arange(len(pool), device=pool.device)
        if not groups:
            return every, 0
        sizes = np.array([len(rows) for rows in groups])
        position = np.arange(sizes.max())
        padding = position >= sizes[:, None]  # (groups, n)
        table = np.where(padding, 0, position + (sizes.cumsum() - sizes)[:, None])
        arrays = (np.concatenate(groups), table, padding)
        flat, among, void = (to_device(torch.from_numpy(a), pool.device) for a in arrays)
        order = herd(features(pool[flat])[among], void, min(count, len(position)))
        return torch.cat([every, flat[among.gather(1, order)].flatten()]), order.shape[1]


def _quotas(size: int, classes: int) -> Indices:
    """Return the largest number of rows of each class; their sum is `size`."""
    return (-(-(size - np.arange(classes)) // classes)).clip(min=0)


def exemplar_counts(size: int, available: Indices) -> Indices:
    """Return how many of the available exemplars of each class `Herding.fill` keeps, (C,).

    >>> exemplar_counts(5, np.array([9, 0, 9, 1])).tolist()
    [2, 0, 2, 1]
    """
    present = np.flatnonzero(available)
    counts = np.zeros_like(available)
    if len(present):
        counts[present] = np.minimum(_quotas(size, len(present)), available[present])
    return counts


def class_counter(size: int, num_classes: int) -> Callable[[Indices], int]:
    """Return a function that counts the filled rows after each task, from its labels."""
    stored = np.zeros(num_classes, np.int64)

    def after(labels: Indices) -> int:
        nonlocal stored
        stored = exemplar_counts(size, stored + np.bincount(labels, minlength=num_classes))
        return int(stored.sum())

    return after


def herd(features: Tensor, padding: Tensor, count: int) -> Tensor:
    """Return the herding order (g, count) of groups of features (g, n, d) with padding (g, n).

    The k-th row brings the mean of the first k rows closest to the mean of the group. Entries
    beyond the number of rows in a group are undefined.

    >>> h = torch.tensor([[[0.0], [1.0], [4.0], [7.0]]])  # the mean is 3
    >>> herd(h, torch.zeros(1, 4, dtype=torch.bool), 3).tolist()
    [[2, 1, 3]]
    """
    valid = ~padding.unsqueeze(2)
    mean = (features * valid).sum(1) / valid.sum(1)
    half_norm = (features.square().sum(2) / 2).masked_fill(padding, torch.inf)
    missing = mean.clone()  # k · mean − the sum of the selected features
    order = torch.zeros(len(features), count, dtype=torch.long, device=features.device)
    groups = torch.arange(len(features), device=features.device)
    for k in range(count):
        # the row closest to `missing` brings the mean of k rows closest to the mean
        pick = ((features @ missing.unsqueeze(2)).squeeze(2) - half_norm).argmax(1, keepdim=True)
        order[:, k : k + 1] = pick
        half_norm.scatter_(1, pick, torch.inf)
        missing += mean - features[groups, pick.squeeze(1)]
    return order
