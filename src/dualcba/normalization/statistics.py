"""The statistics of batch normalisation layers: batch, running or re-estimated (IBN).

Training always uses batch statistics. In evaluation, plain BN uses the running averages of
training, which are biased towards the newest task. IBN re-estimates them in one pass over the
memory before evaluation and restores them afterwards. Training is not affected, so one run can be
evaluated with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import BatchNormBase, foreach_copy_, foreach_zero_

ETA = 0.1
"""The rate of IBN's moving averages."""


def batch_norms(network: nn.Module) -> list[BatchNormBase]:
    """Return the batch normalisation layers of a network that have running statistics."""
    layers = [m for m in network.modules() if isinstance(m, BatchNormBase)]
    return [m for m in layers if m.running_mean is not None]


@contextmanager
def without_tracking(layers: Sequence[BatchNormBase]) -> Iterator[None]:
    """Inside the context, the layers do not update their running statistics."""
    before = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, tracks in zip(layers, before, strict=True):
            layer.track_running_stats = tracks


@contextmanager
def grouped_statistics(
    layers: Sequence[BatchNormBase], groups: int, *, cumulative: bool = False
) -> Iterator[None]:
    """Inside the context, normalise each of `groups` equal parts of a batch by its own statistics.

    The result is the same as with one forward pass per part. Running statistics are updated with
    each part in order: with the layer's momentum, or, if `cumulative`, with the momentum that
    continues a cumulative average over all parts so far.

    >>> layer, x = nn.BatchNorm1d(1), torch.tensor([[0.0], [2.0], [5.0], [9.0]])
    >>> with grouped_statistics([layer], 2):
    ...     layer(x).detach().flatten().round(decimals=3).tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """
    for layer in layers:  # `vars`, because nn.Module.__setattr__ is slow
        forward = partial(_forward_parts, layer, layer.forward)
        vars(layer).update(parts=groups, cumulative=cumulative, forward=forward)
    try:
        yield
    finally:
        for layer in layers:
            for name in ("parts", "cumulative", "forward"):
                del vars(layer)[name]


def _forward_parts(layer: BatchNormBase, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
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
    """Inside the context, all modules are in evaluation mode, except those in `training`."""
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


@contextmanager
def borrowed_averages(
    layers: Sequence[BatchNormBase], source: Sequence[BatchNormBase]
) -> Iterator[None]:
    """Inside the context, layers that do not track statistics use the running ones of `source`.

    `source` are the same layers of another network. A batch of one sample needs running statistics.
    """
    pairs = [(m, s) for m, s in zip(layers, source, strict=True) if not m.track_running_stats]
    before = [(m.running_mean, m.running_var) for m, _ in pairs]
    try:
        for layer, other in pairs:
            layer.running_mean, layer.running_var = other.running_mean, other.running_var
        yield
    finally:
        for (layer, _), (mean, var) in zip(pairs, before, strict=True):
            layer.running_mean, layer.running_var = mean, var


def running_averages(layers: Sequence[BatchNormBase]) -> list[Tensor]:
    """Return the running mean and variance of each layer."""
    both = [t for m in layers for t in (m.running_mean, m.running_var)]
    return [t for t in both if t is not None]


def clear_averages(layers: Sequence[BatchNormBase]) -> None:
    """Set the running averages of one or more layers to zero, to begin an estimate."""
    foreach_zero_(running_averages(layers))


class RunningStatistics:
    """A copy of the running statistics of some layers, on their device; updated in place."""

    def __init__(self, layers: Sequence[BatchNormBase]) -> None:
        averages = running_averages(layers)
        counts = [m.num_batches_tracked for m in layers if m.num_batches_tracked is not None]
        self.live = averages, counts  # two lists: a GPU copies a list of one dtype in one launch
        self.saved = [t.clone() for t in averages], [t.clone() for t in counts]

    def save(self) -> None:
        """Save the current statistics of the layers."""
        _copy(self.saved, self.live)

    def restore(self) -> None:
        """Copy the saved statistics back into the layers."""
        _copy(self.live, self.saved)


def _copy(into: Sequence[list[Tensor]], source: Sequence[list[Tensor]]) -> None:
    for targets, tensors in zip(into, source, strict=True):
        if targets:
            foreach_copy_(targets, tensors)


@contextmanager
def temporary_momentum(layers: Sequence[BatchNormBase]) -> Iterator[Callable[[float], None]]:
    """Yield a function that sets the momentum of all layers; restore their momenta afterwards."""
    before = [layer.momentum for layer in layers]

    def set_momentum(momentum: float) -> None:
        for layer in layers:
            layer.momentum = momentum

    try:
        yield set_momentum
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum


def ibn_momentum(k: int, average: str) -> float:
    """Return the weight of the k-th batch (from 1) in a running average of k batches.

    `"cumulative"` is the plain mean of all batches. `"literal"` is the paper's exponential moving
    average with rate `ETA` from zero, whose weights add up to 1 − (1 − ETA)^k; `"ema"` divides it
    by this sum. `"continued"` is a moving average from the running statistics of training, which
    have the remaining weight.

    >>> ibn_momentum(4, "cumulative")
    0.25
    >>> [round(ibn_momentum(k, "ema"), 3) for k in (1, 2)]
    [1.0, 0.526]
    """
    if average in ("literal", "continued"):
        return ETA
    return 1.0 / k if average == "cumulative" else ETA / (1.0 - (1.0 - ETA) ** k)
