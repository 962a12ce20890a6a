"""LAS: logit-adjusted softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dualcba.errors import at_least, at_least_0
from dualcba.losses import Batch, CrossEntropy, Shifted, Term
from dualcba.methods.base import Context, Method

SMALLEST = math.log(1e-50)
"""The logarithm of the frequency of a class without a sample."""


class LAS(Method):
    """Experience replay with a softmax that is adjusted by recent label frequencies.

    L = mean over new and memory samples of CE(z + τ·log(n + 1e-50), y)

    where n_c is the number of samples of class c in the last steps, new and from the memory. A
    frequent class needs a smaller logit for the same probability, so frequency alone does not
    favour it. Predictions use z. With a bias adaptor the loss is at z + r + τ·log(n + 1e-50).

    Parameters
    ----------
    tau
        The strength of the adjustment, τ.
    window
        The number of last steps whose samples are counted, including the current one.

    References
    ----------
    Huang et al., Online continual learning via logit adjusted softmax, TMLR 2024.
    """

    title = "LAS"
    semi_supervised = True
    counts: Tensor

    def __init__(self, *, tau: float = 1.0, window: int = 1) -> None:
        super().__init__()
        at_least(1, window=window)
        self.tau = at_least_0("tau", tau)
        self.window = window

    def bind(self, context: Context) -> None:
        """Create the counts of each step in the window."""
        super().bind(context)
        C = context.network.num_classes
        self.register_buffer("counts", context.lr.new_zeros(self.window, C))

    @torch.no_grad()
    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Count the labels of this step; the oldest step leaves the window."""
        now = label_counts([new, *mem], self.counts.shape[1]).to(self.counts)
        self.counts.copy_(torch.cat([self.counts[1:], now.unsqueeze(0)]))

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the adjusted cross-entropy of each batch, weighted by its size."""
        shift = self.tau * log_counts(self.counts.sum(0)).to(new.z.dtype)
        return adjusted([new, *mem], shift)


def label_counts(batches: Sequence[Batch], C: int) -> Tensor:
    """Return the number of samples of each class, (C,); samples with weight 0 do not count."""
    y = torch.cat([b.y if b.each is None else b.y.masked_fill(b.each == 0, -1) for b in batches])
    return (y.unsqueeze(1) == torch.arange(C, device=y.device)).sum(0)


def log_counts(counts: Tensor) -> Tensor:
    """Return log(n + 1e-50), computed in a way that float32 can represent.

    >>> [round(v, 3) for v in log_counts(torch.tensor([0.0, 1.0, 2.0])).tolist()]
    [-115.129, 0.0, 0.693]
    """
    return torch.where(counts > 0, counts.clamp(min=1).log(), SMALLEST)


def adjusted(batches: Sequence[Batch], shift: Tensor) -> list[Term]:
    """Return terms whose sum is one mean, over all samples, of the cross-entropy at z + shift."""
    n = sum(len(b.y) for b in batches)
    return [Shifted(CrossEntropy(b, len(b.y) / n), shift) for b in batches]
