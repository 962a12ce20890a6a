"""The outputs of a network whose classes are not known in advance: how many, and their values.

There is always at least one output more than there are classes. An output without a class is
trained as that of a class that has not arrived yet: no sample has its label. So the loss is that of
a learner which knew the number of classes, as many as there are outputs. When outputs are added,
everything that is kept of them is a copy of what is kept of the last output, which has no class:
what it has learnt holds for all classes to come. Weights of the last layer begin with what the last
output has learnt and random numbers of their own, as initial weights have, because classes that
begin with equal weights are slow to be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def outputs_for(count: int, first: int) -> int:
    """Return the number of outputs for `count` classes and a spare one: `first`, doubled as needed.

    >>> [outputs_for(count, 4) for count in (0, 3, 4, 8)]
    [4, 4, 8, 16]
    """
    while first <= count:
        first *= 2
    return first


def fitted(old: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor in another shape: cut, or continued by copies of its last entries.

    >>> fitted(torch.tensor([[1, 2], [3, 4]]), (3, 3)).tolist()
    [[1, 2, 2], [3, 4, 4], [3, 4, 4]]
    """
    for dim, size in enumerate(shape):
        if size != old.shape[dim]:
            index = torch.arange(size, device=old.device).clamp(max=old.shape[dim] - 1)
            old = old.index_select(dim, index)
    return old.clone()
