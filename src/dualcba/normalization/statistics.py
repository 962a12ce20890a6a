"""Batch normalisation in a stream: whose statistics, and when.

Training always uses batch statistics. At test time plain BN uses the running averages that
training left behind, which lean towards the newest task; IBN re-estimates them in one pass over
the memory just before testing and puts the old ones back afterwards, so training never notices
and one run can be scored under both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import BatchNormBase


def batch_norms(network: nn.Module) -> list[BatchNormBase]:
    """The layers of a network that keep running statistics."""
    layers = [m for m in network.modules() if isinstance(m, BatchNormBase)]
    return [m for m in layers if m.running_mean is not None]


@contextmanager
def without_tracking(layers: Sequence[BatchNormBase]) -> Iterator[None]:
    """Batch statistics as in training, with the running statistics left untouched."""
    before = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.track_running_stats = own


@contextmanager
def grouped_statistics(
    layers: Sequence[BatchNormBase], groups: int, *, cumulative: bool = False
) -> Iterator[None]:
    """Each of so many equal parts of a batch has statistics of its own, as in forwards of its own.

    Running statistics move by one part after the other, in their order: each by the layer's
    momentum, or, if `cumulative`, so that an average over all parts so far goes on.

    >>> layer, x = nn.BatchNorm1d(1), torch.tensor([[0.0], [2.0], [5.0], [9.0]])
    >>> with grouped_statistics([layer], 2):
    ...     layer(x).detach().flatten().round(decimals=3).tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """
    for layer in layers:  # past nn.Module's __setattr__, which takes its time
        forward = partial(_by_part, layer, layer.forward)
        vars(layer).update(parts=groups, cumulative=cumulative, forward=forward)
    try:
        yield
    finally:
        for layer in layers:
            for name in ("parts", "cumulative", "forward"):
                del vars(layer)[name]


def _by_part(layer: BatchNormBase, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    parts, momentum = x.chunk(layer.parts), layer.momentum  # type: ignore[arg-type]
    if not layer.cumulative or momentum is None:
        return torch.cat([forward(part) for part in parts])
    outputs = []
    for k, part in enumerate(parts):
        layer.momentum = momentum / (1.0 + k * momentum)
        outputs.append(forward(part))
    layer.momentum = momentum
    return torch.cat(outputs)


@contextmanager
def evaluation_mode(network: nn.Module, training: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Evaluation mode for all modules but the given ones; every module's own mode afterwards."""
    before = [(m, m.training) for m in network.modules()]
    for module, _ in before:
        module.training = False
    for module in training:
        module.training = True
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


class RunningStatistics:
    """A copy of the running statistics of some layers, on their device, written in place."""

    def __init__(self, layers: Sequence[BatchNormBase]) -> None:
        found = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in layers]
        averages = [t for mean, var, _ in found for t in (mean, var) if t is not None]
        counts = [count for _, _, count in found if count is not None]
        self.live = averages, counts  # apart: a GPU copies a list of one dtype by one launch
        self.kept = [t.clone() for t in averages], [t.clone() for t in counts]

    def save(self) -> None:
        """Copy the layers' statistics here."""
        _copy(self.kept, self.live)

    def restore(self) -> None:
        """Copy what was kept back into the layers."""
        _copy(self.live, self.kept)


def _copy(into: Sequence[list[Tensor]], source: Sequence[list[Tensor]]) -> None:
    for targets, tensors in zip(into, source, strict=True):
        if targets:
            torch._foreach_copy_(targets, tensors)


@contextmanager
def temporary_momentum(layers: Sequence[BatchNormBase]) -> Iterator[Callable[[float], None]]:
    """Gives a function that sets how much the next batch counts; puts the momenta back after."""
    before = [layer.momentum for layer in layers]

    def set_momentum(momentum: float) -> None:
        for layer in layers:
            layer.momentum = momentum

    try:
        yield set_momentum
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum


def ibn_momentum(k: int, average: str, eta: float = 0.1) -> float:
    """How much the k-th batch (from 1) counts in a running average of k batches.

    `"cumulative"` weighs all alike; `"ema"` is the paper's moving average, bias-corrected.

    >>> ibn_momentum(4, "cumulative"), round(ibn_momentum(1, "ema"), 3), round(ibn_momentum(2, "ema"), 3)
    (0.25, 1.0, 0.526)
    """
    return 1.0 / k if average == "cumulative" else eta / (1.0 - (1.0 - eta) ** k)
