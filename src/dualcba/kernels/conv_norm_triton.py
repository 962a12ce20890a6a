"""Triton kernels: batch normalisation by groups with residual and ReLU, two passes each way.

An activation in channels-last order is a matrix of rows (sample, y, x) by channels. Its rows form
G groups of R rows, one group per batch of a joint forward pass (`grouped_statistics`), and each
group is normalised with its own statistics. A first kernel writes S partial sums per group and
channel, a second kernel adds them and finishes. There are no atomic operations, so results are
reproducible bit for bit. Sums are in float32 and shifted by the first row of the group, so a large
mean costs no precision.

A kernel takes a third of a second or more to compile. Triton compiles it again for each constant
and for each size that is 1 or a multiple of 16. Options that vary between layers are therefore
run-time arguments that mask loads and stores, and sizes are not specialised on, except C, which
allows wide loads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 64
"""The maximum number of partial sums per group and channel."""

PROGRAMS = 512
"""The approximate number of programs that keeps a large GPU busy."""

WAVE = 256
"""The approximate number of summing programs, with many registers each, that run at once."""

FOLDED = 1024
"""The block size when folding the weights of a channel."""

ROWS, CHANNELS, WARPS = 128, 64, 4
"""The block sizes and warps of a program; constant, so that few variants are compiled."""


@triton.jit
def _add_up(part, g, c, C, S, G, SB: tl.constexpr):
    """Return both sums of a group's channels from S partial sums; `part` is (2, G, S, C)."""
    s = tl.arange(0, SB)
    at = (g * S + s)[:, None] * C + c[None, :]
    mask = (s < S)[:, None] & (c < C)[None, :]
    first = tl.sum(tl.load(part + at, mask=mask, other=0.0), 0)
    second = tl.sum(tl.load(part + G * S * C + at, mask=mask, other=0.0), 0)
    return first, second


@triton.jit
def _moments(x, part, g, c, R, C, S, G, SB: tl.constexpr):
    """Return mean and biased variance of a group's channels, from shifted sums."""
    shift = tl.load(x + g * R * C + c, mask=c < C, other=0.0).to(tl.float32)
    first, second = _add_up(part, g, c, C, S, G, SB)
    off = first / R
    return shift + off, tl.maximum(second / R - off * off, 0.0)


@triton.jit
def _tile(start, s, span, g, c, R, C, BR: tl.constexpr):
    """Return the offsets and the mask of BR rows, beginning at `start` in the s-th span."""
    r = s * span + start + tl.arange(0, BR)
    mask = ((r < R) & (r < (s + 1) * span))[:, None] & (c < C)[None, :]
    return (g * R + r)[:, None] * C + c[None, :], mask


@triton.jit
def _before_relu(dy, y, at, mask, relu):
    """Return the gradient before the ReLU, of which y is the output."""
    d = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    return tl.where(tl.load(y + at, mask=mask & (relu != 0), other=1.0) > 0.0, d, 0.0)


@triton.jit(do_not_specialize=["R", "S", "G", "span"])
def sums_kernel(
    x, part, R, C, S, G, span, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of x and x², both shifted."""
    s, c, g = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), tl.program_id(2)
    shift = tl.load(x + g * R * C + c, mask=c < C, other=0.0).to(tl.float32)
    first = tl.zeros([BR, BC], tl.float32)
    second = tl.zeros([BR, BC], tl.float32)
    for start in range(0, span, BR):
        at, mask = _tile(start, s, span, g, c, R, C, BR)
        v = tl.load(x + at, mask=mask, other=0.0)
        v = tl.where(mask, v.to(tl.float32) - shift[None, :], 0.0)
        first += v
        second += v * v
    at = (g * S + s) * C + c
    tl.store(part + at, tl.sum(first, 0), mask=c < C)
    tl.store(part + G * S * C + at, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "has_residual", "relu", "track"])
def normalise_kernel(
    x, residual, y, part, weight, bias, running_mean, running_var, tracked, stats,
    R, C, S, G, span, eps, momentum, decay, has_residual, relu, track,
    SB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute relu(BN(x) + residual); write (mean, 1/σ) and update the running statistics."""
    s, cb, g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = cb * BC + tl.arange(0, BC)
    mean, var = _moments(x, part, g, c, R, C, S, G, SB)
    inverse = 1.0 / tl.sqrt(var + eps)
    if s == 0:
        tl.store(stats + g * C + c, mean, mask=c < C)
        tl.store(stats + (G + g) * C + c, inverse, mask=c < C)
        if track != 0 and g == 0:
            m = tl.load(running_mean + c, mask=c < C, other=0.0)
            v = tl.load(running_var + c, mask=c < C, other=0.0)
            for k in range(G):  # one after the other, as in separate forward passes
                rate = momentum / (1.0 + k * decay)
                mean_k, var_k = _moments(x, part, k, c, R, C, S, G, SB)
                m += rate * (mean_k - m)
                v += rate * (var_k * (R / (R - 1.0)) - v)
            tl.store(running_mean + c, m, mask=c < C)
            tl.store(running_var + c, v, mask=c < C)
            if cb == 0:
                tl.store(tracked, tl.load(tracked) + G)
    scale = tl.load(weight + c, mask=c < C, other=0.0) * inverse
    shift = tl.load(bias + c, mask=c < C, other=0.0) - mean * scale
    for start in range(0, span, BR):
        at, mask = _tile(start, s, span, g, c, R, C, BR)
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        v = v * scale[None, :] + shift[None, :]
        v += tl.load(residual + at, mask=mask & (has_residual != 0), other=0.0).to(tl.float32)
        v = tl.where(relu != 0, tl.maximum(v, 0.0), v)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "relu"])
def back_sums_kernel(
    dy, y, x, stats, part, R, C, S, G, span, relu, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of the gradient before the ReLU, and of it times normalised x."""
    s, c, g = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), tl.program_id(2)
    mean = tl.load(stats + g * C + c, mask=c < C, other=0.0)
    inverse = tl.load(stats + (G + g) * C + c, mask=c < C, other=0.0)
    first = tl.zeros([BR, BC], tl.float32)
    second = tl.zeros([BR, BC], tl.float32)
    for start in range(0, span, BR):
        at, mask = _tile(start, s, span, g, c, R, C, BR)
        d = _before_relu(dy, y, at, mask, relu)
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        first += d
        second += d * (v - mean[None, :]) * inverse[None, :]
    at = (g * S + s) * C + c
    tl.store(part + at, tl.sum(first, 0), mask=c < C)
    tl.store(part + G * S * C + at, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "has_residual", "relu"])
def back_kernel(
    dy, y, x, stats, part, weight, dx, dresidual, dweight, dbias,
    R, C, S, G, span, has_residual, relu, SB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x, residual, weight and bias."""
    s, cb, g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = cb * BC + tl.arange(0, BC)
    first, second = _add_up(part, g, c, C, S, G, SB)
    if s == 0 and g == 0:
        db, dw = first, second
        for k in range(1, G):
            more_b, more_w = _add_up(part, k, c, C, S, G, SB)
            db += more_b
            dw += more_w
        tl.store(dbias + c, db, mask=c < C)
        tl.store(dweight + c, dw, mask=c < C)
    mean = tl.load(stats + g * C + c, mask=c < C, other=0.0)
    inverse = tl.load(stats + (G + g) * C + c, mask=c < C, other=0.0)
    scale = tl.load(weight + c, mask=c < C, other=0.0) * inverse
    first, second = first / R, second / R
    for start in range(0, span, BR):
        at, mask = _tile(start, s, span, g, c, R, C, BR)
        d = _before_relu(dy, y, at, mask, relu)
        stored = mask & (has_residual != 0)
        tl.store(dresidual + at, d.to(dresidual.dtype.element_ty), mask=stored)
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        v = (v - mean[None, :]) * inverse[None, :]
        v = scale[None, :] * (d - first[None, :] - v * second[None, :])
        tl.store(dx + at, v.to(dx.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "has_residual", "relu"])
def affine_kernel(
    x, residual, weight, bias, running_mean, running_var, R, C, eps, has_residual, relu,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute relu(BN(x) + residual) with running statistics, in place."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    var = tl.load(running_var + c, mask=c < C, other=1.0)
    scale = tl.load(weight + c, mask=c < C, other=0.0) / tl.sqrt(var + eps)
    mean = tl.load(running_mean + c, mask=c < C, other=0.0)
    shift = tl.load(bias + c, mask=c < C, other=0.0) - mean * scale
    mask = (r < R)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    v += tl.load(residual + at, mask=mask & (has_residual != 0), other=0.0).to(tl.float32)
    v = tl.where(relu != 0, tl.maximum(v, 0.0), v)
    tl.store(x + at, v.to(x.dtype.element_ty), mask=mask)


@triton.jit
def fold_kernel(
    weight, gamma, beta, running_mean, running_var, folded, shift, K, eps, BK: tl.constexpr,
):  # fmt: skip
    """Compute the weights of one output channel times γ/σ, and the bias β − γμ/σ."""
    o, block = tl.program_id(0), tl.program_id(1)
    scale = tl.load(gamma + o) / tl.sqrt(tl.load(running_var + o) + eps)
    k = block * BK + tl.arange(0, BK)
    w = tl.load(weight + o * K + k, mask=k < K, other=0.0).to(tl.float32) * scale
    tl.store(folded + o * K + k, w.to(folded.dtype.element_ty), mask=k < K)
    if block == 0:
        bias = tl.load(beta + o) - tl.load(running_mean + o) * scale
        tl.store(shift + o, bias.to(shift.dtype.element_ty))


class Grid:
    """The division of an activation's rows and channels among programs."""

    def __init__(self, x: Tensor, groups: int) -> None:
        self.C = x.shape[1]
        self.R = x.numel() // (self.C * groups)
        self.blocks = triton.cdiv(self.C, CHANNELS)
        columns = groups * self.blocks
        self.S, self.span = self._divide(min(SPLITS, max(1, WAVE // columns)))
        self.finish, self.finish_span = self._divide(max(1, PROGRAMS // columns))
        self.part = (2, groups, self.S, self.C)
        self.sizes = (self.R, self.C, self.S, groups)

    def _divide(self, wanted: int) -> tuple[int, int]:
        """Return the number of programs for a group's rows, and the number of rows of each."""
        span = triton.cdiv(triton.cdiv(self.R, wanted), ROWS) * ROWS
        return triton.cdiv(self.R, span), span


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor], groups: int, eps: float, momentum: float,
    *, relu: bool, track: bool, cumulative: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return relu(BN(x) + residual) by the statistics of each group, and the statistics (2, G, C).

    `running` (mean, variance, count) is updated if `track`.
    """
    p = Grid(x, groups)
    y, part = torch.empty_like(x), x.new_empty(p.part, dtype=torch.float32)
    stats = x.new_empty(2, groups, p.C, dtype=torch.float32)
    sums_kernel[(p.S, p.blocks, groups)](
        x, part, *p.sizes, p.span, BR=ROWS, BC=CHANNELS, num_warps=WARPS
    )
    normalise_kernel[(p.finish, p.blocks, groups)](
        x, x if residual is None else residual, y, part, weight, bias, *running, stats,
        *p.sizes, p.finish_span, eps, momentum, momentum if cumulative else 0.0,
        int(residual is not None), int(relu), int(track),
        SB=SPLITS, BR=ROWS, BC=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return y, stats


def backward(
    dy: Tensor, y: Tensor, x: Tensor, stats: Tensor, weight: Tensor, groups: int,
    *, relu: bool, residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, residual (or None), weight and bias."""
    p = Grid(x, groups)
    dx, part = torch.empty_like(x), x.new_empty(p.part, dtype=torch.float32)
    dresidual = torch.empty_like(x) if residual else None
    dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
    back_sums_kernel[(p.S, p.blocks, groups)](
        dy, y, x, stats, part, *p.sizes, p.span, int(relu),
        BR=ROWS, BC=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    back_kernel[(p.finish, p.blocks, groups)](
        dy, y, x, stats, part, weight, dx, dx if dresidual is None else dresidual, dweight, dbias,
        *p.sizes, p.finish_span, int(residual), int(relu),
        SB=SPLITS, BR=ROWS, BC=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return dx, dresidual, dweight, dbias


def affine(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
    running_mean: Tensor, running_var: Tensor, eps: float, *, relu: bool,
) -> Tensor:  # fmt: skip
    """Return relu(BN(x) + residual) with running statistics, in place of x."""
    C = x.shape[1]
    R = x.numel() // C
    affine_kernel[(triton.cdiv(R, ROWS), triton.cdiv(C, CHANNELS))](
        x, x if residual is None else residual, weight, bias, running_mean, running_var,
        R, C, eps, int(residual is not None), int(relu),
        BR=ROWS, BC=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return x


def fold(
    weight: Tensor, gamma: Tensor, beta: Tensor,
    running_mean: Tensor, running_var: Tensor, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fold normalisation with running statistics into a convolution: its weights and its bias."""
    folded, shift = torch.empty_like(weight), weight.new_empty(len(weight))
    K = weight.numel() // len(weight)
    fold_kernel[(len(weight), triton.cdiv(K, FOLDED))](
        weight, gamma, beta, running_mean, running_var, folded, shift, K, eps,
        BK=FOLDED, num_warps=WARPS,
    )  # fmt: skip
    return folded, shift
