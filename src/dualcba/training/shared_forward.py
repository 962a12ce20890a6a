"""Forward passes that are shared by several ranks: each computes a part of the samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dualcba.engine.ranks import Ranks, gathered
from dualcba.engine.torch_private import BatchNormBase
from dualcba.normalization.synchronized import Groups, synchronized_statistics
from dualcba.training.forward import ForwardPass, Outputs


class SharedForwardPass(ForwardPass):
    """A `ForwardPass` over several ranks: all ranks have all inputs, and get all outputs.

    Batch statistics are those of whole batches. If a batch has only one sample, or fewer samples
    than there are ranks, every rank computes it as a whole.
    """

    def __init__(self, ranks: Ranks, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ranks = ranks

    def outputs(
        self, inputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor] | None = None
    ) -> Outputs:
        """Return logits and features of all samples."""
        if not self._is_shared(len(inputs)):
            return super().outputs(inputs, y, parameters)
        return self._shared(inputs, y, 1, parameters)

    def grouped_outputs(self, inputs: Tensor, y: Tensor, groups: int) -> Outputs:
        """Return logits and features in one pass, with separate statistics for each equal group."""
        if not self._is_shared(len(inputs) // groups):
            return super().grouped_outputs(inputs, y, groups)
        return self._shared(inputs, y, groups)

    def _is_shared(self, n: int) -> bool:
        return n >= max(2, self.ranks.size)

    def _shared(
        self, inputs: Tensor, y: Tensor, groups: int,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Outputs:  # fmt: skip
        ranks, parts = self.ranks, [len(inputs) // groups] * groups
        own = ranks.own_rows(inputs, parts)
        with synchronized_statistics(self.norm_layers, Groups(ranks, parts[0], groups)):
            z, h = self.passed(own, y, parameters)
        if z.dtype != h.dtype:
            return gathered(z, ranks, parts), gathered(h, ranks, parts)
        both = gathered(torch.cat([z, h], 1), ranks, parts)
        z, h = both.split_with_sizes([z.shape[1], h.shape[1]], 1)
        return z.contiguous(), h.contiguous()

    def estimate(
        self, networks: Iterable[nn.Module], layers: Sequence[BatchNormBase], inputs: Tensor,
        groups: int = 1,
    ) -> None:  # fmt: skip
        """Update the running statistics of layers in training mode by a pass of equal groups."""
        n = len(inputs) // groups
        if not self._is_shared(n):
            super().estimate(networks, layers, inputs, groups)
            return
        own = self.ranks.own_rows(inputs, [n] * groups)
        with synchronized_statistics(layers, Groups(self.ranks, n, groups, cumulative=True)):
            for network in networks:
                network(own)
