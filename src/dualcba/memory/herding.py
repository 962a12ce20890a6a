"""Exemplars chosen by herding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dualcba.engine.transfer import to_device
from dualcba.memory.base import Indices, Memory


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

        `features` maps raw samples to (n, d). Waits for the device once, for the labels.
        """
        pool = torch.cat([self.x[: self.filled], x])
        labels = torch.cat([self.y[: self.filled], y]).cpu().numpy()
        classes, arrived = np.unique(labels), np.unique(labels[self.filled :])
        if not len(classes):
            return
        quotas = -(-(self.size - np.arange(len(classes))) // len(classes))  # they add up to it
        quotas = quotas.clip(min=0)
        rows = {c: np.flatnonzero(labels == c) for c in classes}
        ranked, most = self._herded(pool, [rows[c] for c in arrived], int(quotas.max()), features)
        rows |= {c: len(pool) + k * most + np.arange(most) for k, c in enumerate(arrived)}
        counts = np.minimum(quotas, [(labels == c).sum() for c in classes])
        chosen = np.concatenate([rows[c][:n] for c, n in zip(classes, counts, strict=True)])
        self.seen = len(chosen)
        self.x[: self.seen] = pool[ranked[to_device(torch.from_numpy(chosen), pool.device)]]
        self.y[: self.seen] = to_device(torch.from_numpy(classes.repeat(counts)), pool.device)

    def _herded(
        self,
        pool: Tensor,
        groups: Sequence[Indices],
        count: int,
        features: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, int]:
        """All rows of the pool and then, so many for each group, those of it in herding order."""
        every = torch.arange(len(pool), device=pool.device)
        if not groups:
            return every, 0
        sizes = np.array([len(rows) for rows in groups])
        place = np.arange(sizes.max())
        padding = place >= sizes[:, None]  # (groups, n)
        table = np.where(padding, 0, place + (sizes.cumsum() - sizes)[:, None])
        arrays = (np.concatenate(groups), table, padding)
        flat, among, void = (to_device(torch.from_numpy(a), pool.device) for a in arrays)
        order = herd(features(pool[flat])[among], void, min(count, len(place)))
        return torch.cat([every, flat[among.gather(1, order)].flatten()]), order.shape[1]


def herd(features: Tensor, padding: Tensor, count: int) -> Tensor:
    """Groups of features (g, n, d), some of them padding (g, n) → rows in herding order (g, count).

    The k-th brings the mean of a group's first k nearest to the mean of all of it. What comes
    after its last one means nothing.

    >>> h = torch.tensor([[[0.0], [1.0], [4.0], [7.0]]])  # the mean is 3
    >>> herd(h, torch.zeros(1, 4, dtype=torch.bool), 3).tolist()
    [[2, 1, 3]]
    """
    alive = ~padding.unsqueeze(2)
    mean = (features * alive).sum(1) / alive.sum(1)
    less = (features.square().sum(2) / 2).masked_fill(padding, torch.inf)
    missing = mean.clone()  # k · mean − the sum of those chosen
    order = torch.zeros(len(features), count, dtype=torch.long, device=features.device)
    groups = torch.arange(len(features), device=features.device)
    for k in range(count):
        # nearest to the mean of k is nearest to what is missing
        pick = ((features @ missing.unsqueeze(2)).squeeze(2) - less).argmax(1, keepdim=True)
        order[:, k : k + 1] = pick
        less.scatter_(1, pick, torch.inf)
        missing += mean - features[groups, pick.squeeze(1)]
    return order
