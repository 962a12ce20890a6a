"""The number and the initial values of outputs if classes are not known in advance.

There is always at least one output more than there are classes. An output without a class is
trained like that of an announced class that has not arrived yet: no sample has its label. So the
loss is the same as with a known number of classes equal to the number of outputs. The state of new
outputs is copied from that of the last output, which has no class, so what it has learnt holds for
all future classes. In the last layer, new weights are what the last output has learnt plus random
numbers like those of initial weights, because the network is slow to separate classes that start
with equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def outputs_for(count: int, first: int) -> int:
    """Return the number of outputs for `count` classes plus a spare: `first`, doubled as needed.

    >>> [outputs_for(count, 4) for count in (0, 3, 4, 8)]
    [4, 4, 8, 16]
    """
    while first <= count:
        first *= 2
    return first


def fitted(old: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor of another shape: cut off, or extended by copies of its last entries.

    >>> fitted(torch.tensor([[1, 2], [3, 4]]), (3, 3)).tolist()
    [[1, 2, 2], [3, 4, 4], [3, 4, 4]]
    """
    for dim, size in enumerate(shape):
        if size != old.shape[dim]:
            index = torch.arange(size, device=old.device).clamp(max=old.shape[dim] - 1)
            old = old.index_select(dim, index)
    return old.clone()
