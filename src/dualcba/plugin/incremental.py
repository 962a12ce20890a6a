"""IBN for any network in a training loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import BatchNormBase
from dualcba.errors import expected
from dualcba.normalization.statistics import (
    RunningStatistics,
    batch_norms,
    clear_averages,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
)
from dualcba.prediction.batches import IBN_BATCH, portions

Batches = Tensor | Iterable[Any] | Callable[[], Iterable[Any]]


@contextmanager
def ibn(network: nn.Module, batches: Batches) -> Iterator[None]:
    """Evaluate a network inside this context with normalisation statistics of the memory.

    IBN (Algorithm 2) re-estimates the statistics of the batch normalisation layers in one pass over
    `batches` of the memory, and puts the network into evaluation mode. Use it around predictions,
    because running statistics are mostly those of the newest classes. The running statistics and
    the modes are restored afterwards.

    Parameters
    ----------
    network
        The network. If it is in training mode, layers in evaluation mode count as frozen and keep
        their statistics. With DistributedDataParallel, pass its `module`.
    batches
        All inputs as one tensor, an iterable of batches, or a function that returns such an
        iterable. Each batch is passed as `network(batch)`; a last batch of one sample is merged
        with the previous one. With fewer than two samples, the running statistics are used.

    >>> net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)).train()
    >>> with ibn(net, torch.tensor([[1.0], [5.0]])):
    ...     net[0].running_mean.item(), net.training
    (3.0, False)
    >>> net[0].running_mean.item(), net.training
    (0.0, True)
    """
    if not isinstance(network, nn.Module):
        raise ValueError(expected("network", network, "an nn.Module"))
    inputs = _batches(batches)
    layers = [layer for layer in batch_norms(network) if layer.training or not network.training]
    running = RunningStatistics(layers)
    try:
        if layers:
            _estimate(network, layers, inputs)
        with evaluation_mode(network):
            yield
    finally:
        running.restore()


def _batches(given: Batches) -> Iterator[Any]:
    if isinstance(given, Tensor):
        parts = portions(len(given), IBN_BATCH, 1) if len(given) > 1 else ()
        return (given[part] for _, _, part in parts)
    try:
        return _merged(iter(given() if callable(given) else given))
    except TypeError:
        wanted = "a tensor, an iterable of batches or a function that returns one"
        raise ValueError(expected("batches", given, wanted)) from None


def _merged(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; a last batch of one sample, which has no variance, joins the previous one."""
    held = list(islice(batches, 2))
    for batch in batches:
        yield held.pop(0)
        held.append(batch)
    single = bool(held) and isinstance(held[-1], Tensor) and len(held[-1]) == 1
    alike = all(isinstance(b, Tensor) and b.shape[1:] == held[-1].shape[1:] for b in held)
    if single and alike:
        held = [torch.cat(held)] if len(held) > 1 else []
    yield from held


@torch.no_grad()
def _estimate(network: nn.Module, layers: list[BatchNormBase], batches: Iterator[Any]) -> None:
    """Set the statistics of the layers to the mean over the batches, if there are any."""
    with evaluation_mode(network, layers), temporary_momentum(layers) as weigh:
        for k, batch in enumerate(batches):
            if k == 0:
                clear_averages(layers)
            weigh(ibn_momentum(k + 1, "cumulative"))
            network(batch)
