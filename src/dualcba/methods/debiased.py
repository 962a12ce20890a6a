"""The read-out `debiased`: logits minus a bias of the classes that is estimated from the memory."""

from __future__ import annotations

import torch
from torch import Tensor

from dualcba.methods.nearest_mean import Rule

STRENGTH = 0.5
"""The factor of log o in the bias, chosen on validation data (docs/results/frontier.md).

There, 0.3 to 1 are better than no correction.
"""


def wrong_share(log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log o (C,) and the mask of classes that have one, from log-probabilities and labels.

    o_c is the mean probability of class c over the samples of other classes. A class without
    samples has none; samples with the label −1 are ignored.

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
    """Adds a bias b to the logits, estimated from the memory and updated in place.

    b_c = −½·(log o_c − mean of log o over the classes of the memory), with o_c of `wrong_share`

    The network assigns samples of other classes too much probability of a class that training
    favours, such as a class of the last task. Samples of the memory show by how much, even though
    the network was trained on them: they are classified correctly, but the remaining probability
    goes to the favoured classes. Only half of the bias is removed, because some classes are also
    harder to separate. A class without a sample in the memory has b_c = 0.
    """

    tensors = ("bias",)
    kept = "log_p"
    """The name of the result of `rows` in a state."""

    def __init__(self, num_classes: int, like: Tensor) -> None:
        self.bias = like.new_zeros(num_classes)

    @staticmethod
    def width(weight: Tensor) -> int:
        """Return the number of values per sample in `rows`."""
        return len(weight)

    @staticmethod
    def rows(z: Tensor, h: Tensor) -> Tensor:
        """Return the log-probabilities (n, C) of samples, from which `update` computes the bias."""
        return z.float().log_softmax(1)

    def update(self, rows: Tensor, y: Tensor) -> None:
        """Compute the bias from `rows` of samples with labels (n,)."""
        log_o, known = wrong_share(rows, y)
        mean = log_o.sum() / known.sum().clamp(min=1)
        self.bias.copy_(torch.where(known, -STRENGTH * (log_o - mean), 0.0))

    def clear(self) -> None:
        """Set the bias to 0."""
        self.bias.zero_()

    def scores(self, z: Tensor, h: Tensor) -> Tensor:
        """Return corrected logits (n, C)."""
        return z + self.bias
