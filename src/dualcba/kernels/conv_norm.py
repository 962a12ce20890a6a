"""Convolution, batch normalisation, shortcut and ReLU as one: the hot path of a residual network.

On a GPU, for plain batch normalisation of channels-last activations, these are a few kernels of
our own (`kernels`); anywhere else they are the ordinary layers, one after the other.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dualcba.engine.torch_private import BatchNormBase
from dualcba.normalization.layers import BatchNorm

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm)


def conv_norm(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool = True,
) -> Tensor:
    """relu(norm(conv(x)) + residual).

    >>> conv, norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    >>> conv_norm(conv, norm, torch.randn(4, 3, 6, 6)).shape
    torch.Size([4, 8, 4, 4])
    """
    if relu and isinstance(norm, BatchNormBase) and folds(conv, norm, x):
        return _folded(conv, norm, x, residual)
    out = conv(x)
    if isinstance(norm, BatchNormBase) and applies(norm, out):
        if norm.training:
            return _train(norm, out, residual, relu)
        if not torch.is_grad_enabled():
            return _evaluate(norm, out, residual, relu)
    out = norm(out)
    out = out if residual is None else out + residual
    return F.relu(out) if relu else out


def applies(norm: BatchNormBase, x: Tensor) -> bool:
    """Whether there is a kernel for this layer and this activation."""
    return (
        x.is_cuda
        and x.dim() == 4
        and type(norm) in PLAIN
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and kernels() is not None
    )


def folds(conv: nn.Module, norm: BatchNormBase, x: Tensor) -> bool:
    """Whether the normalisation can go into the convolution's weights: evaluation in bfloat16."""
    return (
        not norm.training
        and not torch.is_grad_enabled()
        and type(conv) is nn.Conv2d
        and conv.bias is None
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and not conv._forward_hooks
        and not conv._forward_pre_hooks
        and conv.weight.dtype is torch.bfloat16
        and applies(norm, x)
        and torch.backends.cudnn.enabled
        and torch.version.hip is None  # cuDNN's own: elsewhere no ReLU is a part of them
        and has_bfloat16(x.device)
    )


def has_bfloat16(device: torch.device) -> bool:
    """Whether it is a GPU with bfloat16 in its own units, as all are since Ampere."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


@cache
def kernels() -> ModuleType | None:
    """The Triton kernels, or nothing where there is no Triton."""
    try:
        from dualcba.kernels import conv_norm_triton
    except ImportError:
        return None
    return conv_norm_triton


def _train(norm: BatchNormBase, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    groups, cumulative = getattr(norm, "parts", 1), getattr(norm, "cumulative", False)
    how = (running, groups, norm.eps, norm.momentum, relu, norm.track_running_stats, cumulative)
    parts = (x, residual, norm.weight, norm.bias)
    return _NormReLU.apply(*parts, how)  # type: ignore[no-untyped-call, no-any-return]


def _evaluate(norm: BatchNormBase, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    library = kernels()
    assert library is not None
    stats = (norm.running_mean, norm.running_var)
    return library.affine(  # type: ignore[no-any-return]
        x, residual, norm.weight, norm.bias, *stats, norm.eps, relu=relu
    )


def _folded(conv: Any, norm: BatchNormBase, x: Tensor, residual: Tensor | None) -> Tensor:
    """One convolution whose bias, shortcut and ReLU cuDNN adds on the way out."""
    library = kernels()
    assert library is not None
    stats = (norm.running_mean, norm.running_var)
    weight, bias = library.fold(conv.weight, norm.weight, norm.bias, *stats, norm.eps)
    x = x.to(weight.dtype)  # memory format preserved; autocast knows nothing of these calls
    how = (conv.stride, conv.padding, conv.dilation, conv.groups)
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *how)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *how)


class _NormReLU(torch.autograd.Function):
    """relu(BN(x) + residual) in training, by each group's own statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, how: Any
    ) -> Tensor:
        running, groups, eps, momentum, relu, track, cumulative = how
        library = kernels()
        assert library is not None
        y, stats = library.normalise(
            x, residual, weight, bias, running, groups, eps, momentum,
            relu=relu, track=track, cumulative=cumulative,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu else None, weight, stats)
        ctx.how = groups, relu, residual is not None
        return y  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, stats = ctx.saved_tensors
        groups, relu, residual = ctx.how
        dy = dy.contiguous(memory_format=torch.channels_last)
        library = kernels()
        assert library is not None
        grads = library.backward(
            dy, dy if y is None else y, x, stats, weight, groups, relu=relu, residual=residual
        )
        return (*grads, None)
