"""Triton kernels of the outer level: the adaptor there and back, derivatives of cross-entropies.

In a captured step each kernel on the critical path costs about as much as any other, however
little it does, so these do as much as they can at once. A program takes 16 rows and recomputes
their posterior, which is cheaper than reading it. The hidden units of ω are a kernel of their own:
then both of its layers have programs enough to fill a GPU, which one kernel by rows would not.
Nothing is atomic, so the same input gives the same bits.

Symbols as in `adaptors`: z (n, C) logits, p their posterior, ω of inputs C and S hidden units, ν of
inputs 2 and A hidden units. Masks of classes come as the class sets have them: `new` and `seen` of
(C,) bytes, and `later`, 0 in the first task and 1 from then on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, CLASSES, UNITS = 16, 16, 16
"""What a program takes of each; the least that `tl.dot` does."""

STRIDE = 64
"""Hidden units at a time where a program goes over all of them."""

PRECISION: tl.constexpr = tl.constexpr("ieee")
"""Of products: float32 as it is."""


@triton.jit
def _posterior(z, n, C, rows, c):
    """softmax(z) of some rows; zero in columns beyond C."""
    v = tl.load(
        z + rows[:, None] * C + c[None, :], mask=(rows < n)[:, None] & (c < C)[None, :], other=0.0
    )
    v = tl.where((c < C)[None, :], v, float("-inf"))
    v = tl.exp(v - tl.max(v, 1)[:, None])
    return v / tl.sum(v, 1)[:, None]


@triton.jit
def _sides(new, seen, later, C, c):
    """Masks of old and new classes; none in the first task."""
    on = tl.load(later)
    fresh = tl.load(new + c, mask=c < C, other=0) != 0
    known = tl.load(seen + c, mask=c < C, other=0) != 0
    return tl.where(known & (fresh == 0), on, 0.0), tl.where(fresh, on, 0.0)


@triton.jit
def _seen(seen, later, C, c, MASKED: tl.constexpr):
    """The mask of the classes that ω corrects: all of them in plain CBA."""
    mask = tl.where(c < C, 1.0, 0.0)
    if MASKED:
        known = tl.load(seen + c, mask=c < C, other=0) != 0
        mask = tl.where(known, tl.load(later), 0.0)
    return mask


@triton.jit
def _column(matrix, k, units, at):
    """A column of a (units, 2) matrix."""
    return tl.load(matrix + 2 * k + at, mask=k < units, other=0.0)


@triton.jit
def hidden_kernel(
    z, w1, b1, hidden, n, C, S,
    BN: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """ω's hidden units: relu(p W₁ᵀ + b₁)."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    c = tl.arange(0, BC)
    p = _posterior(z, n, C, rows, c)
    there = (c < C)[:, None] & (k < S)[None, :]
    w = tl.load(w1 + k[None, :] * C + c[:, None], mask=there, other=0.0)
    h = tl.dot(p, w, input_precision=PRECISION)
    h = tl.maximum(h + tl.load(b1 + k, mask=k < S, other=0.0)[None, :], 0.0)
    there = (rows < n)[:, None] & (k < S)[None, :]
    tl.store(hidden + rows[:, None] * S + k[None, :], h, mask=there)


@triton.jit
def correction_kernel(
    z, hidden, w2, b2, u1, a1, u2, a2, new, seen, later, r, n, C, S, A,
    BN: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
    SPECIFIC: tl.constexpr, AGNOSTIC: tl.constexpr, MASKED: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    """r of some rows and classes; (u₁, a₁, u₂, a₂) are ν's weights and biases."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    out = tl.zeros([BN, BO], tl.float32)
    if SPECIFIC:
        for start in range(0, S, BK):
            k = start + tl.arange(0, BK)
            there = (rows < n)[:, None] & (k < S)[None, :]
            h = tl.load(hidden + rows[:, None] * S + k[None, :], mask=there, other=0.0)
            there = (k < S)[:, None] & (o < C)[None, :]
            w = tl.load(w2 + o[None, :] * S + k[:, None], mask=there, other=0.0)
            out += tl.dot(h, w, input_precision=PRECISION)
        out += tl.load(b2 + o, mask=o < C, other=0.0)[None, :]
        out *= _seen(seen, later, C, o, MASKED)[None, :]
    if AGNOSTIC:
        c = tl.arange(0, BC)
        p = _posterior(z, n, C, rows, c)
        is_old, is_new = _sides(new, seen, later, C, c)
        p_old, p_new = tl.sum(p * is_old[None, :], 1), tl.sum(p * is_new[None, :], 1)
        to_old = tl.zeros([BN], tl.float32) + tl.load(a2)
        to_new = tl.zeros([BN], tl.float32) + tl.load(a2 + 1)
        for start in range(0, A, BK):
            k = start + tl.arange(0, BK)
            h = p_old[:, None] * _column(u1, k, A, 0)[None, :]
            h += p_new[:, None] * _column(u1, k, A, 1)[None, :]
            h = tl.maximum(h + tl.load(a1 + k, mask=k < A, other=0.0)[None, :], 0.0)
            to_old += tl.sum(h * tl.load(u2 + k, mask=k < A, other=0.0)[None, :], 1)
            to_new += tl.sum(h * tl.load(u2 + A + k, mask=k < A, other=0.0)[None, :], 1)
        if DIVIDE:
            to_old /= tl.maximum(tl.sum(is_old), 1.0)
            to_new /= tl.maximum(tl.sum(is_new), 1.0)
        o_old, o_new = _sides(new, seen, later, C, o)
        out += to_old[:, None] * o_old[None, :] + to_new[:, None] * o_new[None, :]
    if SPECIFIC and AGNOSTIC:
        out *= 0.5
    tl.store(r + rows[:, None] * C + o[None, :], out, mask=(rows < n)[:, None] & (o < C)[None, :])


@triton.jit
def backward_kernel(
    z, hidden, w2, u1, a1, u2, new, seen, later, v,
    dw1, db1, dw2, db2, du1, da1, du2, da2, n, C, S, A,
    BN: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    SPECIFIC: tl.constexpr, AGNOSTIC: tl.constexpr, MASKED: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    """Gradients of all weights and biases of some hidden units, from v = ∂/∂r."""
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    first = tl.program_id(0) == 0
    c = tl.arange(0, BC)
    half = 0.5 if SPECIFIC and AGNOSTIC else 1.0
    if SPECIFIC:
        corrected = _seen(seen, later, C, c, MASKED) * half
        there2 = (c < C)[:, None] & (k < S)[None, :]
        w2_k = tl.load(w2 + c[:, None] * S + k[None, :], mask=there2, other=0.0)
        g_w1, g_b1 = tl.zeros([BK, BC], tl.float32), tl.zeros([BK], tl.float32)
        g_w2, g_b2 = tl.zeros([BC, BK], tl.float32), tl.zeros([BC], tl.float32)
    if AGNOSTIC:
        is_old, is_new = _sides(new, seen, later, C, c)
        by_old, by_new = is_old * half, is_new * half
        if DIVIDE:
            by_old /= tl.maximum(tl.sum(is_old), 1.0)
            by_new /= tl.maximum(tl.sum(is_new), 1.0)
        u1_old, u1_new = _column(u1, k, A, 0), _column(u1, k, A, 1)
        a1_k = tl.load(a1 + k, mask=k < A, other=0.0)
        u2_old = tl.load(u2 + k, mask=k < A, other=0.0)
        u2_new = tl.load(u2 + A + k, mask=k < A, other=0.0)
        g_u1_old, g_u1_new = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
        g_u2_old, g_u2_new = tl.zeros([BK], tl.float32), tl.zeros([BK], tl.float32)
        g_a1 = tl.zeros([BK], tl.float32)
        g_a2_old, g_a2_new = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        p = _posterior(z, n, C, rows, c)
        there = (rows < n)[:, None] & (c < C)[None, :]
        V = tl.load(v + rows[:, None] * C + c[None, :], mask=there, other=0.0)
        if SPECIFIC:
            there = (rows < n)[:, None] & (k < S)[None, :]
            h = tl.load(hidden + rows[:, None] * S + k[None, :], mask=there, other=0.0)
            d = V * corrected[None, :]
            g_b2 += tl.sum(d, 0)
            g_w2 += tl.dot(tl.trans(d), h, input_precision=PRECISION)
            dh = tl.where(h > 0.0, tl.dot(d, w2_k, input_precision=PRECISION), 0.0)
            g_b1 += tl.sum(dh, 0)
            g_w1 += tl.dot(tl.trans(dh), p, input_precision=PRECISION)
        if AGNOSTIC:
            p_old, p_new = tl.sum(p * is_old[None, :], 1), tl.sum(p * is_new[None, :], 1)
            d_old, d_new = tl.sum(V * by_old[None, :], 1), tl.sum(V * by_new[None, :], 1)
            hA = p_old[:, None] * u1_old[None, :] + p_new[:, None] * u1_new[None, :]
            hA = tl.maximum(hA + a1_k[None, :], 0.0)
            g_a2_old += d_old
            g_a2_new += d_new
            g_u2_old += tl.sum(d_old[:, None] * hA, 0)
            g_u2_new += tl.sum(d_new[:, None] * hA, 0)
            dA = d_old[:, None] * u2_old[None, :] + d_new[:, None] * u2_new[None, :]
            dA = tl.where(hA > 0.0, dA, 0.0)
            g_a1 += tl.sum(dA, 0)
            g_u1_old += tl.sum(dA * p_old[:, None], 0)
            g_u1_new += tl.sum(dA * p_new[:, None], 0)
    if SPECIFIC:
        tl.store(dw2 + c[:, None] * S + k[None, :], g_w2, mask=there2)
        there1 = (k < S)[:, None] & (c < C)[None, :]
        tl.store(dw1 + k[:, None] * C + c[None, :], g_w1, mask=there1)
        tl.store(db1 + k, g_b1, mask=k < S)
        tl.store(db2 + c, g_b2, mask=(c < C) & first)
    if AGNOSTIC:
        tl.store(du1 + 2 * k, g_u1_old, mask=k < A)
        tl.store(du1 + 2 * k + 1, g_u1_new, mask=k < A)
        tl.store(da1 + k, g_a1, mask=k < A)
        tl.store(du2 + k, g_u2_old, mask=k < A)
        tl.store(du2 + A + k, g_u2_new, mask=k < A)
        if first:
            tl.store(da2, tl.sum(g_a2_old))
            tl.store(da2 + 1, tl.sum(g_a2_new))


@triton.jit
def entropy_kernel(
    z, y, s, each, out, C, scale,
    BC: tl.constexpr, CURVATURE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """A row's gradient of cross-entropy, q − y, or curvature applied to s, q ⊙ (s − ⟨q, s⟩)."""
    row, c = tl.program_id(0), tl.arange(0, BC)
    v = tl.load(z + row * C + c, mask=c < C, other=float("-inf"))
    q = tl.exp(v - tl.max(v, 0))
    q = q / tl.sum(q, 0)
    if CURVATURE:
        t = tl.load(s + row * C + c, mask=c < C, other=0.0)
        g = q * (t - tl.sum(q * t, 0))
    else:
        g = q - tl.where(c == tl.load(y + row), 1.0, 0.0)
    if EACH:
        g *= tl.load(each + row)
    tl.store(out + row * C + c, g * scale, mask=c < C)


class Kind:
    """What an adaptor is made of: sizes, and which parts there are."""

    def __init__(
        self, z: Tensor, specific: int, agnostic: int, *, masked: bool, divide: bool
    ) -> None:
        n, C = z.shape
        self.sizes = (n, C, specific, agnostic)
        self.rows, self.classes = triton.cdiv(n, ROWS), triton.cdiv(C, CLASSES)
        self.units = triton.cdiv(max(specific, agnostic), UNITS)
        self.padded = max(16, triton.next_power_of_2(C))
        self.warps = 4 if self.padded <= 128 else 8
        self.flags = {
            "SPECIFIC": specific > 0, "AGNOSTIC": agnostic > 0, "MASKED": masked, "DIVIDE": divide
        }  # fmt: skip


Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of an MLP: hidden weight and bias, output weight and bias."""


def correction(
    z: Tensor, omega: Weights | None, nu: Weights | None, sets: tuple[Tensor, Tensor, Tensor],
    *, masked: bool, divide: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The correction r (n, C), and ω's hidden units (n, S) for the way back."""
    kind = _kind(z, omega, nu, masked, divide)
    n, C, S, _ = kind.sizes
    hidden, r = z.new_empty(n, S), torch.empty_like(z)
    none = (z, z, z, z)  # a pointer must point somewhere
    w1, b1, w2, b2 = omega or none
    if omega is not None:
        hidden_kernel[(kind.rows, triton.cdiv(S, UNITS))](
            z, w1, b1, hidden, n, C, S,
            BN=ROWS, BC=kind.padded, BK=UNITS, num_warps=kind.warps,
        )  # fmt: skip
    correction_kernel[(kind.rows, kind.classes)](
        z, hidden if omega else z, w2, b2, *(nu or none), *sets, r, *kind.sizes,
        BN=ROWS, BC=kind.padded, BO=CLASSES, BK=STRIDE, **kind.flags, num_warps=4,
    )  # fmt: skip
    return r, hidden


def backward(
    z: Tensor, hidden: Tensor, omega: Weights | None, nu: Weights | None,
    sets: tuple[Tensor, Tensor, Tensor], v: Tensor, *, masked: bool, divide: bool,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The gradients of ω and of ν, from that of r."""
    kind = _kind(z, omega, nu, masked, divide)
    of_omega, of_nu = ([torch.empty_like(t) for t in part or ()] for part in (omega, nu))
    none = (z, z, z, z)
    backward_kernel[(kind.units,)](
        z, hidden if omega else z, (omega or none)[2], *(nu or none)[:3], *sets, v,
        *(of_omega or none), *(of_nu or none), *kind.sizes,
        BN=ROWS, BC=kind.padded, BK=UNITS, **kind.flags, num_warps=kind.warps,
    )  # fmt: skip
    return of_omega, of_nu


def _kind(z: Tensor, omega: Weights | None, nu: Weights | None, masked: bool, divide: bool) -> Kind:
    S, A = (0 if part is None else len(part[1]) for part in (omega, nu))
    return Kind(z, S, A, masked=masked, divide=divide)


def entropy(
    z: Tensor, y: Tensor, scale: float, each: Tensor | None = None, s: Tensor | None = None
) -> Tensor:
    """scale · each · (q − y), or with s the curvature applied to it."""
    n, C = z.shape
    out = torch.empty_like(z)
    entropy_kernel[(n,)](
        z, y, z if s is None else s, z if each is None else each, out, C, scale,
        BC=triton.next_power_of_2(C), CURVATURE=s is not None, EACH=each is not None, num_warps=1,
    )  # fmt: skip
    return out
