"""Logits without the bias that the memory shows: the read-out `debiased`."""

from __future__ import annotations

import torch
from torch import Tensor

from dualcba.methods.nearest_mean import Rule

STRENGTH = 0.5
"""The share of log o that is taken off. Chosen on validation data (docs/results/frontier.md), where
0.3 to 1 are better than nothing."""


def wrong_share(log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log o (C,) from log-probabilities (n, C) with labels (n,), and which classes have one.

    o_c is the mean probability of class c over the samples of other classes. A class without
    samples has none; a label of −1 is left out.

    >>> p = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.9, 0.0], [0.3, 0.7, 0.0]])
    >>> log_o, known = wrong_share(p.log(), torch.tensor([0, 1, 1]))
    >>> [f"{o:.2f}" for o in log_o.exp()[known]], known.tolist()
    (['0.20', '0.30'], [True, True, False])
    """
    classes = torch.arange(log_p.shape[1], device=y.device)
    own, labelled = y.unsqueeze(1) == classes, (y >= 0).unsqueeze(1)
    counts = (labelled & ~own).sum(0)
    total = log_p.masked_fill(own | ~labelled, -torch.inf).logsumexp(0)
    known = own.any(0) & (counts > 0) & total.isfinite()
    return torch.where(known, total - counts.clamp(min=1).log(), 0.0), known


class Debiased(Rule):
    """What is added to the logits, updated in place.

    b_c = −½·(log o_c − mean of log o over the classes of the memory), with o_c of `wrong_share`

    A class that training favours, such as one of the last tasks, gets more probability from samples
    that are not its own. The samples of the memory show how much, although the network was trained
    on them: their labels come out right, and the rest of the probability goes where the network is
    biased to. Half of it is taken off, because some classes are also harder to tell apart. A class
    without a sample in the memory has b_c = 0.
    """

    tensors = ("bias",)
    kept = "log_p"
    """What `rows` returns, by its name in a state."""

    def __init__(self, num_classes: int, like: Tensor) -> None:
        self.bias = like.new_zeros(num_classes)

    @staticmethod
    def width(weight: Tensor) -> int:
        """Return the number of values that `rows` has for each sample."""
        return len(weight)

    @staticmethod
    def rows(z: Tensor, h: Tensor) -> Tensor:
        """Return what an update needs of samples: their log-probabilities (n, C)."""
        return z.float().log_softmax(1)

    def update(self, rows: Tensor, y: Tensor) -> None:
        """Set the bias by `rows` of samples with labels (n,)."""
        log_o, known = wrong_share(rows, y)
        mean = log_o.sum() / known.sum().clamp(min=1)
        self.bias.copy_(torch.where(known, -STRENGTH * (log_o - mean), 0.0))

    def clear(self) -> None:
        """Correct nothing."""
        self.bias.zero_()

    def scores(self, z: Tensor, h: Tensor) -> Tensor:
        """Return corrected logits (n, C)."""
        return z + self.bias
