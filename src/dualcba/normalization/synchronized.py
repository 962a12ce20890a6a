"""Batch statistics over the samples of all ranks, as in a single process.

Each rank has a share of each group of samples that is normalised together. The ranks exchange the
mean and variance of their shares in the forward pass, and two sums per channel in the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dualcba.engine.ranks import Ranks
from dualcba.engine.torch_private import BatchNormBase

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Groups:
    """Groups of n samples, of which each rank has a share; a layer's inputs are these shares."""

    ranks: Ranks
    n: int
    number: int
    cumulative: bool = False
    """Whether running statistics continue a cumulative average, as in `grouped_statistics`."""

    def split(self, x: Tensor) -> Tensor:
        """Return inputs as (groups, n, C, ...), at least in float32."""
        parts = x.view(self.number, -1, *x.shape[1:])
        return parts.float() if x.dtype in HALF else parts


@contextmanager
def synchronized_statistics(layers: Sequence[BatchNormBase], groups: Groups) -> Iterator[None]:
    """Inside the context, layers in training mode normalise by the statistics of whole groups."""
    for layer in layers:  # as in `grouped_statistics`
        forward = partial(_forward, layer, layer.forward, groups)
        vars(layer).update(synchronized=True, forward=forward)
    try:
        yield
    finally:
        for layer in layers:
            for name in ("synchronized", "forward"):
                del vars(layer)[name]


def _forward(
    layer: BatchNormBase, forward: Callable[[Tensor], Tensor], groups: Groups, x: Tensor
) -> Tensor:
    if not layer.training:
        return forward(x)
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    mean, var = _statistics(groups, x)
    if layer.track_running_stats:
        _track(layer, groups, mean, var, groups.n * x[0, 0].numel())
    inputs = (x, layer.weight, layer.bias, mean, var, layer.eps, groups)
    return _Normalize.apply(*inputs)  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def _statistics(groups: Groups, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each whole group, (groups, C) each."""
    parts = groups.split(x)
    mean = parts.mean(_over(parts))
    var = (parts - _wide(mean, parts)).square_().mean(_over(parts))  # var_mean is slow on a CPU
    means, variances = groups.ranks.stack(torch.stack([mean, var])).unbind(1)  # (ranks, groups, C)
    shares = mean.new_tensor(groups.ranks.counts(groups.n)).view(-1, 1, 1) / groups.n
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square())).sum(0)


def _over(parts: Tensor) -> tuple[int, ...]:
    """Return the dimensions over which statistics are computed: all but groups and channels."""
    return (1, *range(3, parts.dim()))


def _wide(values: Tensor, parts: Tensor) -> Tensor:
    """Reshape values (groups, C) or (C,) to broadcast with inputs (groups, n, C, ...)."""
    rest = [1] * (parts.dim() - 3)
    return values.view(-1, 1, values.shape[-1], *rest)


@torch.no_grad()
def _track(layer: BatchNormBase, groups: Groups, mean: Tensor, var: Tensor, count: int) -> None:
    """Update the running statistics with each group in order, as torch's layers would."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    unbiased = var * (count / max(count - 1, 1))
    for k in range(groups.number):
        layer.num_batches_tracked.add_(1)
        rate = layer.momentum
        if rate is None:
            rate = 1.0 / float(layer.num_batches_tracked)
        elif groups.cumulative:
            rate = rate / (1.0 + k * rate)
        layer.running_mean.mul_(1 - rate).add_(mean[k], alpha=rate)
        layer.running_var.mul_(1 - rate).add_(unbiased[k], alpha=rate)


class _Normalize(torch.autograd.Function):
    """(x − mean) / √(var + eps) · weight + bias; mean and var depend on the x of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
        eps: float, groups: Groups,
    ) -> Tensor:  # fmt: skip
        """Return the normalised inputs of this rank."""
        invstd = (var + eps).rsqrt()
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.groups, ctx.affine = groups, (weight is not None, bias is not None)
        ctx.save_for_backward(x, mean, invstd, scale)
        parts = groups.split(x)
        out = torch.addcmul(_wide(shift, parts), parts, _wide(scale, parts))
        return out.flatten(0, 1).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of this rank's inputs, and its part of the parameter gradients."""
        x, mean, invstd, scale = ctx.saved_tensors
        groups: Groups = ctx.groups
        given, parts = groups.split(grad), groups.split(x)
        centred, over = parts - _wide(mean, parts), _over(parts)
        sums = torch.stack([given.sum(over), (given * centred).sum(over) * invstd])
        of_bias, of_weight = sums.sum(1)
        count = groups.n * x[0, 0].numel()
        along, across = groups.ranks.sum_(sums.clone()).div_(count)
        # scale · (given − along − centred · across / σ)
        start, slope = (_wide(-scale * v, parts) for v in (along, across * invstd))
        dx = torch.addcmul(start, centred, slope).addcmul_(given, _wide(scale, parts))
        has_weight, has_bias = ctx.affine
        of_affine = of_weight if has_weight else None, of_bias if has_bias else None
        return dx.flatten(0, 1).to(x.dtype), *of_affine, None, None, None, None
