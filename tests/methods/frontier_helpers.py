"""What tests of methods share: losses by hand, and batches from inside a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba import Learner
from dualcba.losses import Batch, Term

Floats = NDArray[np.float64]
Look = Callable[[Batch, list[Batch], Batch], None]


def in_double(batch: Batch) -> Batch:
    """Return a batch, with its views, with logits and features in float64, as constants."""
    views = {name: in_double(view) for name, view in batch.views.items()}
    columns = {name: c.double() for name, c in batch.columns.items()}
    z, h = batch.z.detach().double(), batch.h.detach().double()
    return replace(batch, z=z, h=h, views=views, columns=columns)


def double_targets(method: Any, new: Batch, mem: Sequence[Batch]) -> None:
    """Let a method compute its targets of this step, if it has any, and keep them in float64."""
    method.terms(new, mem)
    if getattr(method, "_cached", None) is not None:
        x, targets = method._cached
        method._cached = x, tuple([t.double() for t in part] for part in targets)
    if hasattr(method, "_outputs"):
        method._outputs = [tuple(t.detach().double() for t in pair) for pair in method._outputs]


def inside(learner: Learner, look: Look) -> list[int]:
    """Call `look` with the batches of each step that updates the adaptor, in float64."""
    seen: list[int] = []
    step = learner.parts.outer_loop.step

    def spy(new: Batch, mem: Sequence[Batch], outer: Batch | None) -> None:
        assert outer is not None
        outputs = getattr(learner.method, "_outputs", None)
        with torch.no_grad():
            look(in_double(new), [in_double(b) for b in mem], in_double(outer))
        if hasattr(learner.method, "_cached"):
            learner.method._cached = None  # it may be in float64
        if outputs is not None:
            learner.method._outputs = outputs
        seen.append(len(mem))
        step(new, mem, outer)

    learner.parts.outer_loop.step = spy  # type: ignore[method-assign]
    return seen


def numbers(t: Tensor) -> Any:
    """Return a tensor as an array, floats in float64."""
    array = t.detach().cpu().numpy()
    return array.astype(np.float64) if t.is_floating_point() else array


def log_softmax(z: Floats) -> Floats:
    """Return the log-softmax of each row."""
    shifted = z - z.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def cross_entropies(z: Floats, y: NDArray[np.int64]) -> Floats:
    """Return −log softmax(z)[y] of each sample."""
    return -log_softmax(z)[np.arange(len(y)), y]


def divergences(target: Floats, z: Floats, T: float) -> Floats:
    """Return T²·KL(softmax(target / T) ‖ softmax(z / T)) of each sample."""
    p, q = log_softmax(target / T), log_softmax(z / T)
    return T**2 * (np.exp(p) * (p - q)).sum(1)


def check_derivatives(term: Term, z: Tensor, s: Tensor) -> None:
    """Compare gradient and curvature of a term with autograd, in float64."""
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(term.value(z), z, create_graph=True)
    torch.testing.assert_close(term.gradient(z.detach()), gradient.detach(), rtol=1e-9, atol=1e-12)
    (product,) = torch.autograd.grad((gradient * s).sum(), z)
    torch.testing.assert_close(term.curvature(z.detach(), s), product, rtol=1e-9, atol=1e-12)
