"""The gradient of the outer step: exact ∇φ L_buf, at the cost of a backward through a small MLP.

Only the last layer (W, b) is unrolled (Section III-B), so the backbone needs no second-order
graph. With Z (n×C) all inner logits, H (n×d) their features, G = ∂L_trn/∂Z, the virtual step

    W' = W − α Gᵀ H        b' = b − α Gᵀ 1

and E = ∂L_buf/∂Z' the outer error at the virtual logits Z' = H' W'ᵀ + b', the chain rule gives

    ∇φ L_buf = ∇φ ⟨G(Z; φ), S⟩        S = −α (H H'ᵀ + 1) E

where φ acts through G alone. A cosine head has other derivatives of z in its weights, at W and at
W' (`nets.heads`), and the same chain of them.

In logit space φ enters G only through z̃ = z + r, so this is one ordinary backward through the
adaptor from ∂⟨G, S⟩/∂r = (∂²L_trn/∂z̃²) S, which each term gives in closed form. For losses that
are not a sum of such terms, and in probability space, autograd computes the same expression.

That is the virtual step of plain SGD. For another optimiser (`virtual_step`), W' and b' are the
results of its step, and the factors D = −∂W'/∂(Gᵀ H) and d = −∂b'/∂(Gᵀ 1) replace α, entry by
entry:

    S = −(H (D ⊙ Eᵀ H')ᵀ + 1 (d ⊙ Eᵀ 1)ᵀ)

The single-level ablations do not unroll. They use the gradient of L_trn itself, or the gradient of
L_buf at the adapted logits of the outer batch, since its raw logits do not depend on φ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.outer_loss import OuterTerms
from dualcba.adaptors.virtual_step import Momentum, VirtualStep
from dualcba.losses import Batch, Term, inner_batches, merge_terms, stack_rows, total
from dualcba.methods import Method
from dualcba.nets.heads import CosineHead, Scale, cosine_change, cosine_gradients

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Outer:
    """Everything that the outer loss depends on, except the inner gradient."""

    batch: Batch
    terms: OuterTerms
    head: nn.Module
    step: VirtualStep | Tensor | float


def hypergradient(
    adaptor: Adaptor,
    method: Method,
    new: Batch,
    mem: Sequence[Batch],
    outer_batch: Batch,
    head: nn.Module,
    step: VirtualStep | Tensor | float,
    *,
    outer_terms: OuterTerms | None = None,
    closed_form: bool | None = None,
) -> Grads:
    """Return ∇φ of the outer loss, one entry per trainable parameter of the adaptor.

    Features and logits of the batches are constants. `outer_batch.z` is not used: the outer logits
    are those after the virtual `step`, which for plain SGD is given as its learning rate.
    `outer_terms` are the terms of the outer loss, by default those of the method. `closed_form`
    chooses between the closed form and autograd; by default the closed form is used if it exists.
    """
    if closed_form is None:
        closed_form = method.closed_form and adaptor.space == "logit"
    derive = _closed_form if closed_form else _by_autograd
    outer = Outer(outer_batch, outer_terms or method.outer_terms, head, step)
    return derive(adaptor, method, new, mem, outer)


def _closed_form(
    adaptor: Adaptor, method: Method, new: Batch, mem: Sequence[Batch], outer: Outer
) -> Grads:
    Z, H = _stack(new, mem)
    with torch.enable_grad():
        r = adaptor(Z)
    with torch.no_grad():
        adapted = Z + r
        terms = merge_terms(method.terms(new, mem))
        rows = [t.batch.rows for t in terms]
        at = [(adapted if t.adapted else Z)[k] for t, k in zip(terms, rows, strict=True)]
        G = _sum_at_rows(Z, [(k, t.gradient(z)) for t, k, z in zip(terms, rows, at, strict=True)])
        S = _sensitivity(H, G, outer)
        every = zip(terms, rows, at, strict=True)
        V = _sum_at_rows(
            Z, [(k, t.curvature(z, S[k])) for t, k, z in every if t.adapted]
        )  # ∂⟨G, S⟩/∂r
    return torch.autograd.grad(r, trainable(adaptor), V, allow_unused=True)


def _by_autograd(
    adaptor: Adaptor, method: Method, new: Batch, mem: Sequence[Batch], outer: Outer
) -> Grads:
    Z, H = _stack(new, mem)
    with torch.enable_grad():
        Z = Z.requires_grad_()
        loss = _adapted_loss(adaptor, method, new, mem, Z)
        (G,) = torch.autograd.grad(loss, Z, create_graph=True)
        S = _sensitivity(H, G.detach(), outer)
        return torch.autograd.grad((G * S).sum(), trainable(adaptor), allow_unused=True)


def inner_gradient(adaptor: Adaptor, method: Method, new: Batch, mem: Sequence[Batch]) -> Grads:
    """Return ∇φ of the inner loss at adapted logits, to train φ by the same loss as θ."""
    Z, _ = _stack(new, mem)
    with torch.enable_grad():
        loss = _adapted_loss(adaptor, method, new, mem, Z)
        return torch.autograd.grad(loss, trainable(adaptor), allow_unused=True)


def buffer_gradient(
    adaptor: Adaptor, method: Method, outer_batch: Batch, outer_terms: OuterTerms | None = None
) -> Grads:
    """Return ∇φ of the outer loss at the adapted logits of the outer batch, without unrolling."""
    z = outer_batch.z.detach()
    with torch.enable_grad():
        adapted = adaptor.adapt(z, adaptor(z))
        loss = total((outer_terms or method.outer_terms)(outer_batch), lambda _: adapted)
        return torch.autograd.grad(loss, trainable(adaptor), allow_unused=True)


def _adapted_loss(
    adaptor: Adaptor, method: Method, new: Batch, mem: Sequence[Batch], Z: Tensor
) -> Tensor:
    """Return L_trn at the logits Z, corrected by the adaptor."""
    r = adaptor(Z)
    first, *rest = (_at_logits(b, Z) for b in (new, *mem))
    return method.loss(first, rest, lambda b: adaptor.adapt(b.z, r[b.rows]))


def _at_logits(batch: Batch, Z: Tensor) -> Batch:
    """Return a batch, and its views, with their rows of the logits Z."""
    views = {name: view.with_logits(Z[view.rows]) for name, view in batch.views.items()}
    return replace(batch, z=Z[batch.rows], views=views)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


def _stack(new: Batch, mem: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    batches = inner_batches(new, mem)
    return stack_rows([b.z for b in batches]), stack_rows([b.h for b in batches])


def _sum_at_rows(Z: Tensor, parts: Sequence[tuple[slice, Tensor]]) -> Tensor:
    """Return a matrix like Z, the sum of all parts at their rows.

    Parts that cover all rows in order are concatenated; other parts are added.
    """
    tiles: list[Tensor] = []
    rest: list[tuple[slice, Tensor]] = []
    end = 0
    for rows, part in parts:
        if rows.start == end:
            tiles.append(part)
            end = rows.stop
        else:
            rest.append((rows, part))
    if end != len(Z):
        tiles, rest = [torch.zeros_like(Z)], list(parts)
    # copy before adding: the tensor may belong to a term
    out = tiles[0] if len(tiles) == 1 and not rest else torch.cat(tiles)
    for rows, part in rest:
        out[rows].add_(part)
    return out


def _sensitivity(H: Tensor, G: Tensor, outer: Outer) -> Tensor:
    """Return S, the gradient of the outer loss with respect to G."""
    if isinstance(outer.head, CosineHead):
        return _cosine_sensitivity(H, G, outer, outer.head)
    weight, bias, step = outer.head.weight, outer.head.bias, outer.step
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    with torch.no_grad():
        if isinstance(step, Momentum):
            start = step.start(weight), None if bias is None else step.start(bias)
            return _by_rate(H, G, outer.batch, outer.terms, *start, step.rate)
        if isinstance(step, Tensor | float | int):
            return _by_rate(H, G, outer.batch, outer.terms, weight, bias, step)
        return _by_entry(H, G, outer.batch, outer.terms, weight, bias, step)


def _by_rate(
    H: Tensor, G: Tensor, outer_batch: Batch, outer_terms: OuterTerms,
    weight: Tensor, bias: Tensor | None, rate: Tensor | float,
) -> Tensor:  # fmt: skip
    """Return S = −α (H H'ᵀ + 1) E, for the step W' = W − α Gᵀ H and b' = b − α Gᵀ 1.

    W and b are `weight` and `bias` at the start of the step, and α is its `rate`.
    """
    K = H @ outer_batch.h.T  # (n, n')
    alpha = rate if isinstance(rate, Tensor) else K.new_tensor(rate)
    K = alpha * K if bias is None else torch.addcmul(alpha, K, alpha)  # α (H H'ᵀ + 1)
    virtual = F.linear(outer_batch.h, weight, bias).addmm_(K.T, G, alpha=-1)  # H' W'ᵀ + b'
    E = _error(outer_terms(outer_batch.with_logits(virtual)), virtual)
    return torch.addmm(G, K, E, beta=0, alpha=-1)  # beta=0: only the shape of G matters


def _by_entry(
    H: Tensor, G: Tensor, outer_batch: Batch, outer_terms: OuterTerms,
    weight: Tensor, bias: Tensor | None, step: VirtualStep,
) -> Tensor:  # fmt: skip
    """Return S for a step with a different factor for each entry."""
    moved, D = step.moved(weight, G.T @ H)
    moved_bias, d = (None, None) if bias is None else step.moved(bias, G.sum(0))
    virtual = F.linear(outer_batch.h, moved, moved_bias)
    E = _error(outer_terms(outer_batch.with_logits(virtual)), virtual)
    S = H @ (D * (E.T @ outer_batch.h)).T  # (n, C)
    return -(S if d is None else S + d * E.sum(0))


@torch.no_grad()
def _cosine_sensitivity(H: Tensor, G: Tensor, outer: Outer, head: CosineHead) -> Tensor:
    """Return S for a cosine head: the change of Z along −α · ∂L_buf/∂(W', s')."""
    weight, scale, h = head.weight, head.scale, outer.batch.h
    g_weight, g_scale = cosine_gradients(H, weight, scale, G)
    moved, D = _moved(outer.step, weight, g_weight)
    moved_scale, d = _moved(outer.step, scale, g_scale) if head.learnt else (scale, None)
    virtual = moved_scale * F.linear(F.normalize(h), F.normalize(moved))
    E = _error(outer.terms(outer.batch.with_logits(virtual)), virtual)
    e_weight, e_scale = cosine_gradients(h, moved, moved_scale, E)
    return -cosine_change(H, weight, scale, D * e_weight, None if d is None else d * e_scale)


def _moved(
    step: VirtualStep | Tensor | float, parameter: Scale, gradient: Tensor
) -> tuple[Tensor, Scale]:
    """Return p' and the factor −∂p'/∂g of a parameter p with gradient g."""
    if isinstance(step, Tensor | float | int):
        return parameter - step * gradient, step
    assert isinstance(parameter, Tensor)
    return step.moved(parameter, gradient)


def _error(terms: list[Term], virtual: Tensor) -> Tensor:
    """Return ∂L_buf/∂Z'."""
    return reduce(torch.add, [t.gradient(virtual) for t in terms])
