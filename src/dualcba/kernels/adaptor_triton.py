"""Triton kernels of the outer step: adaptor forward and backward, cross-entropy derivatives.

In a captured step every kernel on the critical path costs about the same, however little it
computes, so there are few kernels. A program processes 16 rows and recomputes their posterior,
which is cheaper than reading it. The hidden units of ω have a separate kernel, so that both layers
have enough programs to fill a GPU. There are no atomic operations, so results are reproducible bit
for bit. The kernels are not specialised on the number of rows, so another batch size needs no
compilation.

Symbols as in `adaptors`: z (n, C) are logits, p their posterior; ω has C inputs and S hidden units,
ν has 2 inputs and A hidden units. The class masks are those of `ClassSets`: `new` and `seen` are
(C,) bytes, `later` is 0 in the first task and 1 afterwards.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, CLASSES, UNITS = 16, 16, 16
"""The block sizes of a program; 16 is the minimum for `tl.dot`."""

STRIDE = 64
"""The block size of programs that loop over all hidden units."""

PRECISION: tl.constexpr = tl.constexpr("ieee")
"""The precision of products: full float32."""


@triton.jit
def _posterior(z, n, C, rows, c):
    """Return softmax(z) of some rows; zero in columns beyond C."""
    v = tl.load(
        z + rows[:, None] * C + c[None, :], mask=(rows < n)[:, None] & (c < C)[None, :], other=0.0
    )
    v = tl.where((c < C)[None, :], v, float("-inf"))
    v = tl.exp(v - tl.max(v, 1)[:, None])
    return v / tl.sum(v, 1)[:, None]


@triton.jit
def _old_and_new(new, seen, later, C, c):
    """Return the masks of old and new classes; zero in the first task."""
    on = tl.load(later)
    fresh = tl.load(new + c, mask=c < C, other=0) != 0
    known = tl.load(seen + c, mask=c < C, other=0) != 0
    return tl.where(known & (fresh == 0), on, 0.0), tl.where(fresh, on, 0.0)


@triton.jit
def _corrected(seen, later, C, c, MASKED: tl.constexpr):
    """Return the mask of the classes that ω corrects; in plain CBA all classes."""
    mask = tl.where(c < C, 1.0, 0.0)
    if MASKED:
        known = tl.load(seen + c, mask=c < C, other=0) != 0
        mask = tl.where(known, tl.load(later), 0.0)
    return mask


@triton.jit
def _column(matrix, k, units, index):
    """Return a column of a (units, 2) matrix."""
    return tl.load(matrix + 2 * k + index, mask=k < units, other=0.0)


@triton.jit(do_not_specialize=["n"])
def hidden_kernel(
    z, w1, b1, hidden, n, C, S,
    BN: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the hidden units of ω: relu(p W₁ᵀ + b₁)."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    c = tl.arange(0, BC)
    p = _posterior(z, n, C, rows, c)
    mask = (c < C)[:, None] & (k < S)[None, :]
    w = tl.load(w1 + k[None, :] * C + c[:, None], mask=mask, other=0.0)
    h = tl.dot(p, w, input_precision=PRECISION)
    h = tl.maximum(h + tl.load(b1 + k, mask=k < S, other=0.0)[None, :], 0.0)
    mask = (rows < n)[:, None] & (k < S)[None, :]
    tl.store(hidden + rows[:, None] * S + k[None, :], h, mask=mask)


@triton.jit(do_not_specialize=["n"])
def correction_kernel(
    z, hidden, w2, b2, u1, a1, u2, a2, new, seen, later, r, n, C, S, A,
    BN: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
    SPECIFIC: tl.constexpr, AGNOSTIC: tl.constexpr, MASKED: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    """Compute r of some rows and classes; (u₁, a₁, u₂, a₂) are the weights and biases of ν."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    out = tl.zeros([BN, BO], tl.float32)
    if SPECIFIC:
        for start in range(0, S, BK):
            k = start + tl.arange(0, BK)
            mask = (rows < n)[:, None] & (k < S)[None, :]
            h = tl.load(hidden + rows[:, None] * S + k[None, :], mask=mask, other=0.0)
            mask = (k < S)[:, None] & (o < C)[None, :]
            w = tl.load(w2 + o[None, :] * S + k[:, None], mask=mask, other=0.0)
            out += tl.dot(h, w, input_precision=PRECISION)
        out += tl.load(b2 + o, mask=o < C, other=0.0)[None, :]
        out *= _corrected(seen, later, C, o, MASKED)[None, :]
    if AGNOSTIC:
        c = tl.arange(0, BC)
        p = _posterior(z, n, C, rows, c)
        is_old, is_new = _old_and_new(new, seen, later, C, c)
        p_old, p_new = tl.sum(p * is_old[None, :], 1), tl.sum(p * is_new[None, :], 1)
        # summed over units once, at the end: each sum synchronises the warps
        sum_old = tl.zeros([BN, BK], tl.float32)
        sum_new = tl.zeros([BN, BK], tl.float32)
        for start in range(0, A, BK):
            k = start + tl.arange(0, BK)
            h = p_old[:, None] * _column(u1, k, A, 0)[None, :]
            h += p_new[:, None] * _column(u1, k, A, 1)[None, :]
            h = tl.maximum(h + tl.load(a1 + k, mask=k < A, other=0.0)[None, :], 0.0)
            sum_old += h * tl.load(u2 + k, mask=k < A, other=0.0)[None, :]
            sum_new += h * tl.load(u2 + A + k, mask=k < A, other=0.0)[None, :]
        to_old, to_new = tl.sum(sum_old, 1) + tl.load(a2), tl.sum(sum_new, 1) + tl.load(a2 + 1)
        if DIVIDE:
            to_old /= tl.maximum(tl.sum(is_old), 1.0)
            to_new /= tl.maximum(tl.sum(is_new), 1.0)
        o_old, o_new = _old_and_new(new, seen, later, C, o)
        out += to_old[:, None] * o_old[None, :] + to_new[:, None] * o_new[None, :]
    if SPECIFIC and AGNOSTIC:
        out *= 0.5
    tl.store(r + rows[:, None] * C + o[None, :], out, mask=(rows < n)[:, None] & (o < C)[None, :])


@triton.jit(do_not_specialize=["n"])
def omega_kernel(
    z, hidden, w2, seen, later, v, dw1, db1, dw2, db2, n, C, S, factor,
    BN: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of ω for some hidden units, from factor · v with v = ∂/∂r."""
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    c = tl.arange(0, BC)
    corrected = _corrected(seen, later, C, c, MASKED) * factor
    mask2 = (c < C)[:, None] & (k < S)[None, :]
    w2_k = tl.load(w2 + c[:, None] * S + k[None, :], mask=mask2, other=0.0)
    g_w1, g_b1 = tl.zeros([BK, BC], tl.float32), tl.zeros([BN, BK], tl.float32)
    g_w2, g_b2 = tl.zeros([BC, BK], tl.float32), tl.zeros([BN, BC], tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        p = _posterior(z, n, C, rows, c)
        mask = (rows < n)[:, None] & (c < C)[None, :]
        d = tl.load(v + rows[:, None] * C + c[None, :], mask=mask, other=0.0)
        d *= corrected[None, :]
        mask = (rows < n)[:, None] & (k < S)[None, :]
        h = tl.load(hidden + rows[:, None] * S + k[None, :], mask=mask, other=0.0)
        g_b2 += d
        g_w2 += tl.dot(tl.trans(d), h, input_precision=PRECISION)
        dh = tl.where(h > 0.0, tl.dot(d, w2_k, input_precision=PRECISION), 0.0)
        g_b1 += dh
        g_w1 += tl.dot(tl.trans(dh), p, input_precision=PRECISION)
    tl.store(dw2 + c[:, None] * S + k[None, :], g_w2, mask=mask2)
    mask1 = (k < S)[:, None] & (c < C)[None, :]
    tl.store(dw1 + k[:, None] * C + c[None, :], g_w1, mask=mask1)
    tl.store(db1 + k, tl.sum(g_b1, 0), mask=k < S)
    tl.store(db2 + c, tl.sum(g_b2, 0), mask=(c < C) & (tl.program_id(0) == 0))


@triton.jit(do_not_specialize=["n"])
def nu_kernel(
    z, u1, a1, u2, new, seen, later, v, du1, da1, du2, da2, n, C, A, factor,
    BN: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of ν for some hidden units, from factor · v with v = ∂/∂r."""
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    c = tl.arange(0, BC)
    is_old, is_new = _old_and_new(new, seen, later, C, c)
    factor_old, factor_new = factor, factor
    if DIVIDE:
        factor_old = factor / tl.maximum(tl.sum(is_old, 0), 1.0)
        factor_new = factor / tl.maximum(tl.sum(is_new, 0), 1.0)
    u1_old, u1_new = _column(u1, k, A, 0), _column(u1, k, A, 1)
    a1_k = tl.load(a1 + k, mask=k < A, other=0.0)
    u2_old = tl.load(u2 + k, mask=k < A, other=0.0)
    u2_new = tl.load(u2 + A + k, mask=k < A, other=0.0)
    g_u1_old, g_u1_new = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    g_u2_old, g_u2_new = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    g_a1 = tl.zeros([BN, BK], tl.float32)
    g_a2_old, g_a2_new = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for start in range(0, n, BN):
        rows = start + tl.arange(0, BN)
        p = _posterior(z, n, C, rows, c)
        mask = (rows < n)[:, None] & (c < C)[None, :]
        V = tl.load(v + rows[:, None] * C + c[None, :], mask=mask, other=0.0)
        p_old, p_new = tl.sum(p * is_old[None, :], 1), tl.sum(p * is_new[None, :], 1)
        d_old = tl.sum(V * is_old[None, :], 1) * factor_old
        d_new = tl.sum(V * is_new[None, :], 1) * factor_new
        h = p_old[:, None] * u1_old[None, :] + p_new[:, None] * u1_new[None, :]
        h = tl.maximum(h + a1_k[None, :], 0.0)
        g_a2_old += d_old
        g_a2_new += d_new
        g_u2_old += d_old[:, None] * h
        g_u2_new += d_new[:, None] * h
        dh = d_old[:, None] * u2_old[None, :] + d_new[:, None] * u2_new[None, :]
        dh = tl.where(h > 0.0, dh, 0.0)
        g_a1 += dh
        g_u1_old += dh * p_old[:, None]
        g_u1_new += dh * p_new[:, None]
    tl.store(du1 + 2 * k, tl.sum(g_u1_old, 0), mask=k < A)
    tl.store(du1 + 2 * k + 1, tl.sum(g_u1_new, 0), mask=k < A)
    tl.store(da1 + k, tl.sum(g_a1, 0), mask=k < A)
    tl.store(du2 + k, tl.sum(g_u2_old, 0), mask=k < A)
    tl.store(du2 + A + k, tl.sum(g_u2_new, 0), mask=k < A)
    if tl.program_id(0) == 0:
        tl.store(da2, tl.sum(g_a2_old, 0))
        tl.store(da2 + 1, tl.sum(g_a2_new, 0))


@triton.jit
def entropy_kernel(
    z, y, s, each, out, C, scale,
    BC: tl.constexpr, CURVATURE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Compute the cross-entropy gradient q − onehot(y) of a row, or q ⊙ (s − ⟨q, s⟩)."""
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


Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""The weights of an MLP: hidden weight and bias, output weight and bias."""


def correction(
    z: Tensor, omega: Weights | None, nu: Weights | None, sets: tuple[Tensor, Tensor, Tensor],
    *, masked: bool, divide: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the correction r (n, C), and the hidden units of ω (n, S) for the backward pass."""
    n, C = z.shape
    S, A = _units(omega), _units(nu)
    rows, BC = triton.cdiv(n, ROWS), _padded(C)
    hidden, r = z.new_empty(n, S), torch.empty_like(z)
    w1, b1, w2, b2 = omega or (z,) * 4  # unused pointers must be valid
    if omega is not None:
        hidden_kernel[(rows, triton.cdiv(S, UNITS))](
            z, w1, b1, hidden, n, C, S, BN=ROWS, BC=BC, BK=UNITS, num_warps=_warps(BC)
        )
    correction_kernel[(rows, triton.cdiv(C, CLASSES))](
        z, hidden if omega else z, w2, b2, *(nu or (z,) * 4), *sets, r, n, C, S, A,
        BN=ROWS, BC=BC, BO=CLASSES, BK=STRIDE,
        SPECIFIC=omega is not None, AGNOSTIC=nu is not None, MASKED=masked, DIVIDE=divide,
        num_warps=_warps(BC),
    )  # fmt: skip
    return r, hidden


def backward(
    z: Tensor, hidden: Tensor, omega: Weights | None, nu: Weights | None,
    sets: tuple[Tensor, Tensor, Tensor], v: Tensor, *, masked: bool, divide: bool,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Return the gradients of ω and of ν from the gradient v of r; empty for a missing part."""
    n, C = z.shape
    S, A = _units(omega), _units(nu)
    BC = _padded(C)
    factor = 0.5 if omega and nu else 1.0
    of_omega, of_nu = ([torch.empty_like(t) for t in part or ()] for part in (omega, nu))
    if omega is not None:
        omega_kernel[(triton.cdiv(S, UNITS),)](
            z, hidden, omega[2], *sets[1:], v, *of_omega, n, C, S, factor,
            BN=ROWS, BC=BC, BK=UNITS, MASKED=masked, num_warps=_warps(BC), num_stages=1,
        )  # fmt: skip
    if nu is not None:
        nu_kernel[(triton.cdiv(A, UNITS),)](
            z, *nu[:3], *sets, v, *of_nu, n, C, A, factor,
            BN=ROWS, BC=BC, BK=UNITS, DIVIDE=divide, num_warps=_warps(BC),
        )  # fmt: skip
    return of_omega, of_nu


def _units(part: Weights | None) -> int:
    return 0 if part is None else len(part[1])


def _padded(C: int) -> int:
    """Return the block size for C classes: a power of two of at least 16."""
    return max(16, int(triton.next_power_of_2(C)))


def _warps(padded: int) -> int:
    """Return the number of warps; more threads have shorter unrolled loops, so compile faster."""
    return 4 if padded <= 32 else 8


def entropy(
    z: Tensor, y: Tensor, scale: float, each: Tensor | None = None, s: Tensor | None = None
) -> Tensor:
    """Return scale · each · (q − onehot(y)), or with s: scale · each · q ⊙ (s − ⟨q, s⟩)."""
    n, C = z.shape
    out = torch.empty_like(z)
    entropy_kernel[(n,)](
        z, y, z if s is None else s, z if each is None else each, out, C, scale,
        BC=triton.next_power_of_2(C), CURVATURE=s is not None, EACH=each is not None, num_warps=1,
    )  # fmt: skip
    return out
