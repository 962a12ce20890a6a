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
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """The layers of a network that keep running statistics."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    return [m for m in layers if m.running_mean is not None]


@contextmanager
def untracked(layers: Sequence[_BatchNorm]) -> Iterator[None]:
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
def grouped(
    layers: Sequence[_BatchNorm], groups: int, *, cumulative: bool = False
) -> Iterator[None]:
    """Each of so many equal parts of a batch has statistics of its own, as in forwards of its own.

    Running statistics move by one part after the other, in their order: each by the layer's
    momentum, or, if `cumulative`, so that an average over all parts so far goes on.

    >>> layer, x = nn.BatchNorm1d(1), torch.tensor([[0.0], [2.0], [5.0], [9.0]])
    >>> with grouped([layer], 2):
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


def _by_part(layer: _BatchNorm, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
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
def modes(network: nn.Module, training: Sequence[nn.Module] = ()) -> Iterator[None]:
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


class Statistics:
    """A copy of the running statistics of some layers, on their device, written in place."""

    def __init__(self, layers: Sequence[_BatchNorm]) -> None:
        found = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in layers]
        averages = [t for mean, var, _ in found for t in (mean, var) if t is not None]
        counts = [count for _, _, count in found if count is not None]
        self.live = averages, counts  # apart: a GPU copies a list of one dtype by one launch
        self.kept = [t.clone() for t in averages], [t.clone() for t in counts]

    def keep(self) -> None:
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
def weighed(layers: Sequence[_BatchNorm]) -> Iterator[Callable[[float], None]]:
    """Gives a function that sets how much the next batch counts; puts the momenta back after."""
    before = [layer.momentum for layer in layers]

    def weigh(momentum: float) -> None:
        for layer in layers:
            layer.momentum = momentum

    try:
        yield weigh
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum


def share(k: int, average: str, eta: float = 0.1) -> float:
    """How much the k-th batch (from 1) counts in a running average of k batches.

    `"cumulative"` weighs all alike; `"ema"` is the paper's moving average, bias-corrected.

    >>> share(4, "cumulative"), round(share(1, "ema"), 3), round(share(2, "ema"), 3)
    (0.25, 1.0, 0.526)
    """
    return 1.0 / k if average == "cumulative" else eta / (1.0 - (1.0 - eta) ** k)
