"""Fused operations of the outer step: the adaptor's correction and cross-entropy derivatives.

On a GPU, for float32 and at most `MAX_CLASSES` classes, these are Triton kernels
(`adaptor_triton`). Otherwise `adaptors` and `losses` compute the same in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dualcba.kernels.loader import load_kernels
from dualcba.tasks.class_sets import ClassSets

MAX_CLASSES = 512
"""The maximum number of classes, bounded by the size of a kernel program."""

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""The weights of an MLP: hidden weight and bias, output weight and bias."""

kernels = partial(load_kernels, "adaptor_triton")


def applies(*tensors: Tensor) -> bool:
    """Whether the kernels support these tensors; the first has one column per class."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
        and 0 < tensors[0].shape[-1] <= MAX_CLASSES
        and len(tensors[0]) > 0
        and kernels() is not None
    )


def correction(
    z: Tensor, omega: Weights | None, nu: Weights | None, sets: ClassSets,
    *, masked: bool, divide: bool,
) -> Tensor:  # fmt: skip
    """Return r (n, C): the output of ω, of ν, or the mean of both.

    ω corrects all classes, or if `masked` the seen classes from the second task on.
    """
    masks = (sets.new.view(torch.uint8), sets.seen.view(torch.uint8), sets.later)
    options = (masks, omega is not None, masked, divide)
    return _Correction.apply(z, options, *(omega or ()), *(nu or ()))  # type: ignore[no-untyped-call, no-any-return]


def entropy_gradient(z: Tensor, y: Tensor, scale: float, each: Tensor | None) -> Tensor:
    """Return scale · each · (q − onehot(y)), with q = softmax(z)."""
    return kernels().entropy(z, y.contiguous(), scale, each)  # type: ignore[no-any-return]


def entropy_curvature(z: Tensor, y: Tensor, s: Tensor, scale: float, each: Tensor | None) -> Tensor:
    """Return scale · each · q ⊙ (s − ⟨q, s⟩), with q = softmax(z)."""
    return kernels().entropy(z, y.contiguous(), scale, each, s)  # type: ignore[no-any-return]


class _Correction(torch.autograd.Function):
    """r as a function of the weights of ω and ν; logits are constants."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, options: Any, *weights: Tensor) -> Tensor:
        masks, specific, masked, divide = options
        omega, nu = _split(weights, specific)
        r, hidden = kernels().correction(z, omega, nu, masks, masked=masked, divide=divide)
        ctx.options = specific, masked, divide
        ctx.save_for_backward(z, hidden, *masks, *weights)
        return r  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        z, hidden, *rest = ctx.saved_tensors
        specific, masked, divide = ctx.options
        masks, weights = tuple(rest[:3]), rest[3:]
        omega, nu = _split(weights, specific)
        of_omega, of_nu = kernels().backward(
            z, hidden, omega, nu, masks, v.contiguous(), masked=masked, divide=divide
        )
        grads = zip([*of_omega, *of_nu], ctx.needs_input_grad[2:], strict=True)
        return (None, None, *(g if needed else None for g, needed in grads))


def _split(
    weights: Sequence[Tensor], specific: bool
) -> tuple[Sequence[Tensor] | None, Sequence[Tensor] | None]:
    """Return the weights of ω and of ν, None for a missing part."""
    if not specific:
        return None, weights
    return weights[:4], weights[4:] or None
