"""Outputs of a network that have no class yet, and how their number grows."""

from __future__ import annotations

from torch import Tensor

NO_LOGIT = -1e4
"""The logit of an output without a class: its probability is exactly 0, at any temperature."""


def mask_logits(z: Tensor, unassigned: Tensor | None) -> Tensor:
    """Return logits (n, C) with `NO_LOGIT` in the columns of a mask (C,), which have no gradient.

    >>> import torch
    >>> z = mask_logits(torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([False, False, True]))
    >>> z.softmax(1)[0, 2].item()
    0.0
    """
    return z if unassigned is None else z.masked_fill(unassigned, NO_LOGIT)


def outputs_for(count: int, first: int) -> int:
    """Return the number of outputs for `count` classes: `first`, doubled until it is enough.

    >>> [outputs_for(count, 4) for count in (0, 4, 5, 9)]
    [4, 4, 8, 16]
    """
    while first < count:
        first *= 2
    return first
