"""The gradient of the outer step: exact ∇φ L_buf, for the cost of a backward through a small MLP.

Only the last layer (W, b) is unrolled (Section III-B), so the backbone needs no second-order
graph. With Z (n×C) all inner logits, H (n×d) their features, G = ∂L_trn/∂Z, the virtual step

    W' = W − α Gᵀ H        b' = b − α Gᵀ 1

and E = ∂L_buf/∂Z' the outer error at the virtual logits Z' = H' W'ᵀ + b', the chain rule gives

    ∇φ L_buf = ∇φ ⟨G(Z; φ), S⟩        S = −α (H H'ᵀ + 1) E

where φ acts through G alone. In logit space φ enters G only through z̃ = z + r, so this is one
ordinary backward through the adaptor from ∂⟨G, S⟩/∂r = (∂²L_trn/∂z̃²) S, which each term gives in
closed form. For losses that are not a sum of such terms, and in probability space, autograd
computes the same expression.

The single-level ablations unroll nothing. They use the gradient of L_trn itself, or that of L_buf
at the adapted logits of the outer batch: its raw logits do not depend on φ.
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
from dualcba.losses import Batch, Term, inner_batches, merge_terms, stack_rows, total
from dualcba.methods import Method

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Outer:
    """What the outer loss after the virtual step depends on, besides the inner gradient."""

    batch: Batch
    terms: OuterTerms
    head: nn.Module
    lr: Tensor | float


def hypergradient(
    adaptor: Adaptor,
    method: Method,
    new: Batch,
    mem: Sequence[Batch],
    outer_batch: Batch,
    head: nn.Module,
    lr: Tensor | float,
    *,
    outer_terms: OuterTerms | None = None,
    closed_form: bool | None = None,
) -> Grads:
    """Return ∇φ of the outer loss, one entry per trainable parameter of the adaptor.

    Features and logits of the batches are constants. `outer_batch.z` is not used: the outer logits
    are those after the virtual step. `outer_terms` are the terms of the outer loss, by default
    those of the method. `closed_form` chooses between the closed form and autograd; by default the
    closed form is used where it exists.
    """
    if closed_form is None:
        closed_form = method.closed_form and adaptor.space == "logit"
    step = _closed_form if closed_form else _by_autograd
    outer = Outer(outer_batch, outer_terms or method.outer_terms, head, lr)
    return step(adaptor, method, new, mem, outer)


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
        G = _spread(Z, [(k, t.gradient(z)) for t, k, z in zip(terms, rows, at, strict=True)])
        S = _sensitivity(H, G, outer)
        every = zip(terms, rows, at, strict=True)
        V = _spread(Z, [(k, t.curvature(z, S[k])) for t, k, z in every if t.adapted])  # ∂⟨G, S⟩/∂r
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
    """Return ∇φ of the inner loss at adapted logits: θ and φ are trained by the same loss."""
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
    first, *rest = (_at(b, Z) for b in (new, *mem))
    return method.loss(first, rest, lambda b: adaptor.adapt(b.z, r[b.rows]))


def _at(batch: Batch, Z: Tensor) -> Batch:
    """Return a batch with its rows of the logits Z, and so its views."""
    views = {name: view.with_logits(Z[view.rows]) for name, view in batch.views.items()}
    return replace(batch, z=Z[batch.rows], views=views)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


def _stack(new: Batch, mem: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    batches = inner_batches(new, mem)
    return stack_rows([b.z for b in batches]), stack_rows([b.h for b in batches])


def _spread(Z: Tensor, parts: Sequence[tuple[slice, Tensor]]) -> Tensor:
    """Return a matrix like Z with each part added at its rows.

    Parts that cover all rows one after another are concatenated; others are added to zeros.
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
    # a copy, unless nothing is added: a term's own tensor must not change
    out = tiles[0] if len(tiles) == 1 and not rest else torch.cat(tiles)
    for rows, part in rest:
        out[rows].add_(part)
    return out


def _sensitivity(H: Tensor, G: Tensor, outer: Outer) -> Tensor:
    """Return S = −α (H H'ᵀ + 1) E, the gradient of the outer loss with respect to G."""
    weight, bias, lr, outer_batch = outer.head.weight, outer.head.bias, outer.lr, outer.batch
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    with torch.no_grad():
        K = H @ outer_batch.h.T  # (n, n')
        rate = lr if isinstance(lr, Tensor) else K.new_tensor(lr)
        K = rate * K if bias is None else torch.addcmul(rate, K, rate)  # α (H H'ᵀ + 1)
        virtual = F.linear(outer_batch.h, weight, bias).addmm_(K.T, G, alpha=-1)  # H' W'ᵀ + b'
        E = _error(outer.terms(outer_batch.with_logits(virtual)), virtual)
        return torch.addmm(G, K, E, beta=0, alpha=-1)  # beta=0: only the shape of G matters


def _error(terms: list[Term], virtual: Tensor) -> Tensor:
    """Return ∂L_buf/∂Z'."""
    return reduce(torch.add, [t.gradient(virtual) for t in terms])
