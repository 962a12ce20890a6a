"""The outer level by few kernels: an adaptor's correction, and derivatives of cross-entropies.

On a GPU, for float32 and a usual number of classes, these are kernels of our own
(`outer_kernels`); anywhere else `adaptors` and `losses` do the same in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dualcba.tasks.class_sets import ClassSets

MOST = 512
"""So many classes fit a program."""

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of an MLP: hidden weight and bias, output weight and bias."""


def applies(*tensors: Tensor) -> bool:
    """Whether there are kernels for these; the first has a column per class."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
        and 0 < tensors[0].shape[-1] <= MOST
        and len(tensors[0]) > 0
        and kernels() is not None
    )


@cache
def kernels() -> ModuleType | None:
    """The Triton kernels, or nothing where there is no Triton."""
    try:
        from dualcba.kernels import adaptor_triton
    except ImportError:
        return None
    return adaptor_triton


def correction(
    z: Tensor, omega: Weights | None, nu: Weights | None, sets: ClassSets,
    *, masked: bool, divide: bool,
) -> Tensor:  # fmt: skip
    """r (n, C) by ω, by ν or by the mean of both; of all classes unless `masked`."""
    members = (sets.new.view(torch.uint8), sets.seen.view(torch.uint8), sets.later)
    how = (members, omega is not None, masked, divide)
    return _Correction.apply(z, how, *(omega or ()), *(nu or ()))  # type: ignore[no-untyped-call, no-any-return]


def entropy_gradient(z: Tensor, y: Tensor, scale: float, each: Tensor | None) -> Tensor:
    """scale · each · (q − y), with q = softmax(z)."""
    library = kernels()
    assert library is not None
    return library.entropy(z, y.contiguous(), scale, each)  # type: ignore[no-any-return]


def entropy_curvature(z: Tensor, y: Tensor, s: Tensor, scale: float, each: Tensor | None) -> Tensor:
    """scale · each · q ⊙ (s − ⟨q, s⟩)."""
    library = kernels()
    assert library is not None
    return library.entropy(z, y.contiguous(), scale, each, s)  # type: ignore[no-any-return]


class _Correction(torch.autograd.Function):
    """r as a function of ω and ν; logits are constants."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, how: Any, *weights: Tensor) -> Tensor:
        members, specific, masked, divide = how
        library = kernels()
        assert library is not None
        omega, nu = _parts(weights, specific)
        r, hidden = library.correction(z, omega, nu, members, masked=masked, divide=divide)
        ctx.how = specific, masked, divide
        ctx.save_for_backward(z, hidden, *members, *weights)
        return r  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        z, hidden, *rest = ctx.saved_tensors
        specific, masked, divide = ctx.how
        members, weights = tuple(rest[:3]), rest[3:]
        library = kernels()
        assert library is not None
        omega, nu = _parts(weights, specific)
        grads = library.backward(
            z, hidden, omega, nu, members, v.contiguous(), masked=masked, divide=divide
        )
        every = [*grads[0], *grads[1]]
        wanted = ctx.needs_input_grad[2:]
        return (None, None, *(g if w else None for g, w in zip(every, wanted, strict=True)))


def _parts(
    weights: Sequence[Tensor], specific: bool
) -> tuple[Sequence[Tensor] | None, Sequence[Tensor] | None]:
    """ω's weights and ν's."""
    if not specific:
        return None, weights
    return weights[:4], weights[4:] or None
