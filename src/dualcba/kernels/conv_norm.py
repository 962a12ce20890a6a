"""Fused convolution, batch normalisation, residual and ReLU: the hot path of a residual network.

On a GPU, for plain batch normalisation of channels-last activations, these are Triton kernels
(`conv_norm_triton`). Otherwise the layers are called in sequence.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dualcba.engine.torch_private import (
    BatchNormBase,
    cudnn_convolution_add_relu,
    cudnn_convolution_relu,
    has_forward_hooks,
)
from dualcba.kernels.loader import load_kernels
from dualcba.normalization.layers import BatchNorm

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm)
"""The layer classes that the kernels can replace."""

kernels = partial(load_kernels, "conv_norm_triton")


def conv_norm(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool = True,
) -> Tensor:
    """Return relu(norm(conv(x)) + residual); the residual and the ReLU are optional.

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
    """Whether the kernels support this layer and this activation."""
    return (
        x.is_cuda
        and x.dim() == 4
        and type(norm) in PLAIN
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and not has_forward_hooks(norm)
        and "synchronized" not in norm.__dict__  # over several ranks
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and kernels() is not None
    )


def folds(conv: nn.Module, norm: BatchNormBase, x: Tensor) -> bool:
    """Whether the normalisation can be folded into the weights: evaluation in bfloat16."""
    return (
        not norm.training
        and not torch.is_grad_enabled()
        and type(conv) is nn.Conv2d
        and conv.bias is None
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and not has_forward_hooks(conv)
        and conv.weight.dtype is torch.bfloat16
        and applies(norm, x)
        and torch.backends.cudnn.enabled
        and torch.version.hip is None  # only cuDNN fuses the ReLU
        and has_bfloat16(x.device)
    )


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device is a GPU with native bfloat16: Ampere or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def _train(norm: BatchNormBase, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    groups, cumulative = getattr(norm, "parts", 1), getattr(norm, "cumulative", False)
    options = (running, groups, norm.eps, norm.momentum, relu, norm.track_running_stats, cumulative)
    tensors = (x, residual, norm.weight, norm.bias)
    return _NormReLU.apply(*tensors, options)  # type: ignore[no-untyped-call, no-any-return]


def _evaluate(norm: BatchNormBase, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    stats = (norm.running_mean, norm.running_var)
    return kernels().affine(  # type: ignore[no-any-return]
        x, residual, norm.weight, norm.bias, *stats, norm.eps, relu=relu
    )


def _folded(conv: Any, norm: BatchNormBase, x: Tensor, residual: Tensor | None) -> Tensor:
    """Return the result of one cuDNN convolution with fused bias, residual and ReLU."""
    stats = (norm.running_mean, norm.running_var)
    weight, bias = kernels().fold(conv.weight, norm.weight, norm.bias, *stats, norm.eps)
    x = x.to(weight.dtype)  # autocast does not cover these functions
    options = (conv.stride, conv.padding, conv.dilation, conv.groups)
    if residual is None:
        return cudnn_convolution_relu(x, weight, bias, *options)
    return cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *options)


class _NormReLU(torch.autograd.Function):
    """relu(BN(x) + residual) in training, with the statistics of each group."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, options: Any
    ) -> Tensor:
        running, groups, eps, momentum, relu, track, cumulative = options
        y, stats = kernels().normalise(
            x, residual, weight, bias, running, groups, eps, momentum,
            relu=relu, track=track, cumulative=cumulative,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu else None, weight, stats)
        ctx.options = groups, relu, residual is not None
        return y  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, stats = ctx.saved_tensors
        groups, relu, residual = ctx.options
        dy = dy.contiguous(memory_format=torch.channels_last)
        grads = kernels().backward(
            dy, dy if y is None else y, x, stats, weight, groups, relu=relu, residual=residual
        )
        return (*grads, None)
