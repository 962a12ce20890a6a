"""Triton kernels: batch normalisation by groups with its shortcut and ReLU, two passes each way.

An activation in channels-last order is a matrix of rows (sample, y, x) by channels. Its rows fall
into G groups of R, one group per forward that the batch stands for (`normalization.grouped`), and
each group is normalised by its own statistics. A first kernel leaves S partial sums per group and
channel, a second adds them up and finishes; nothing is atomic, so the same input gives the same
bits. Sums run in float32, shifted by the group's first row so that a large mean costs no digits.

A kernel takes a third of a second or more to compile, and Triton compiles it anew for each constant
and for each size that becomes 1 or a multiple of 16. So what varies from layer to layer is told at
run time, where a load or store that is not wanted is masked off, and sizes are not specialised on:
all but C, without which loads would not be wide.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 64
"""At most so many partial sums per group and channel."""

PROGRAMS = 512
"""About so many programs keep a large GPU busy."""

WAVE = 256
"""About so many programs of those that sum, each with many registers, run on it at once."""

FOLDED = 1024
"""So many weights of a channel are folded at a time."""

ROWS, CHANNELS, WARPS = 128, 64, 4
"""What a program takes at a time; constant, so that few variants must be compiled."""


@triton.jit
def _add_up(part, g, c, C, S, G, SB: tl.constexpr):
    """The two sums of a group's channels, from their S parts; `part` is (2, G, S, C)."""
    s = tl.arange(0, SB)
    at = (g * S + s)[:, None] * C + c[None, :]
    there = (s < S)[:, None] & (c < C)[None, :]
    first = tl.sum(tl.load(part + at, mask=there, other=0.0), 0)
    second = tl.sum(tl.load(part + G * S * C + at, mask=there, other=0.0), 0)
    return first, second


@triton.jit
def _moments(x, part, g, c, R, C, S, G, SB: tl.constexpr):
    """Mean and biased variance of a group's channels, from shifted sums."""
    shift = tl.load(x + g * R * C + c, mask=c < C, other=0.0).to(tl.float32)
    first, second = _add_up(part, g, c, C, S, G, SB)
    off = first / R
    return shift + off, tl.maximum(second / R - off * off, 0.0)


@triton.jit(do_not_specialize=["R", "S", "G", "span"])
def sums_kernel(
    x, part, R, C, S, G, span, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Partial sums of x and x², both shifted."""
    s, c, g = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), tl.program_id(2)
    shift = tl.load(x + g * R * C + c, mask=c < C, other=0.0).to(tl.float32)
    first = tl.zeros([BR, BC], tl.float32)
    second = tl.zeros([BR, BC], tl.float32)
    for start in range(0, span, BR):
        r = s * span + start + tl.arange(0, BR)
        there = ((r < R) & (r < (s + 1) * span))[:, None] & (c < C)[None, :]
        v = tl.load(x + (g * R + r)[:, None] * C + c[None, :], mask=there, other=0.0)
        v = tl.where(there, v.to(tl.float32) - shift[None, :], 0.0)
        first += v
        second += v * v
    at = (g * S + s) * C + c
    tl.store(part + at, tl.sum(first, 0), mask=c < C)
    tl.store(part + G * S * C + at, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "shortcut", "relu", "track"])
def normalise_kernel(
    x, residual, y, part, weight, bias, running_mean, running_var, tracked, stats,
    R, C, S, G, span, eps, momentum, decay, shortcut, relu, track,
    SB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Normalise, scale, add the shortcut, ReLU; leave (mean, 1/σ) and move running statistics."""
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
            for k in range(G):  # one after the other, as separate forwards would
                share = momentum / (1.0 + k * decay)
                mean_k, var_k = _moments(x, part, k, c, R, C, S, G, SB)
                m += share * (mean_k - m)
                v += share * (var_k * (R / (R - 1.0)) - v)
            tl.store(running_mean + c, m, mask=c < C)
            tl.store(running_var + c, v, mask=c < C)
            if cb == 0:
                tl.store(tracked, tl.load(tracked) + G)
    scale = tl.load(weight + c, mask=c < C, other=0.0) * inverse
    shift = tl.load(bias + c, mask=c < C, other=0.0) - mean * scale
    for start in range(0, span, BR):
        r = s * span + start + tl.arange(0, BR)
        there = ((r < R) & (r < (s + 1) * span))[:, None] & (c < C)[None, :]
        at = (g * R + r)[:, None] * C + c[None, :]
        v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        v = v * scale[None, :] + shift[None, :]
        v += tl.load(residual + at, mask=there & (shortcut != 0), other=0.0).to(tl.float32)
        v = tl.where(relu != 0, tl.maximum(v, 0.0), v)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "relu"])
def back_sums_kernel(
    dy, y, x, stats, part, R, C, S, G, span, relu, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Partial sums of the gradient before the ReLU, and of it times the normalised x."""
    s, c, g = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), tl.program_id(2)
    mean = tl.load(stats + g * C + c, mask=c < C, other=0.0)
    inverse = tl.load(stats + (G + g) * C + c, mask=c < C, other=0.0)
    first = tl.zeros([BR, BC], tl.float32)
    second = tl.zeros([BR, BC], tl.float32)
    for start in range(0, span, BR):
        r = s * span + start + tl.arange(0, BR)
        there = ((r < R) & (r < (s + 1) * span))[:, None] & (c < C)[None, :]
        at = (g * R + r)[:, None] * C + c[None, :]
        d = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        d = tl.where(tl.load(y + at, mask=there & (relu != 0), other=1.0) > 0.0, d, 0.0)
        v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        first += d
        second += d * (v - mean[None, :]) * inverse[None, :]
    at = (g * S + s) * C + c
    tl.store(part + at, tl.sum(first, 0), mask=c < C)
    tl.store(part + G * S * C + at, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["R", "S", "G", "span", "shortcut", "relu"])
def back_kernel(
    dy, y, x, stats, part, weight, dx, dresidual, dweight, dbias,
    R, C, S, G, span, shortcut, relu, SB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of x, of the shortcut, of weight and of bias."""
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
        r = s * span + start + tl.arange(0, BR)
        there = ((r < R) & (r < (s + 1) * span))[:, None] & (c < C)[None, :]
        at = (g * R + r)[:, None] * C + c[None, :]
        d = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        d = tl.where(tl.load(y + at, mask=there & (relu != 0), other=1.0) > 0.0, d, 0.0)
        wanted = there & (shortcut != 0)
        tl.store(dresidual + at, d.to(dresidual.dtype.element_ty), mask=wanted)
        v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        v = (v - mean[None, :]) * inverse[None, :]
        v = scale[None, :] * (d - first[None, :] - v * second[None, :])
        tl.store(dx + at, v.to(dx.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["R", "shortcut", "relu"])
def affine_kernel(
    x, residual, weight, bias, running_mean, running_var, R, C, eps, shortcut, relu,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Normalise by running statistics, in place, with shortcut and ReLU."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    var = tl.load(running_var + c, mask=c < C, other=1.0)
    scale = tl.load(weight + c, mask=c < C, other=0.0) / tl.sqrt(var + eps)
    mean = tl.load(running_mean + c, mask=c < C, other=0.0)
    shift = tl.load(bias + c, mask=c < C, other=0.0) - mean * scale
    there = (r < R)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, mask=there, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    v += tl.load(residual + at, mask=there & (shortcut != 0), other=0.0).to(tl.float32)
    v = tl.where(relu != 0, tl.maximum(v, 0.0), v)
    tl.store(x + at, v.to(x.dtype.element_ty), mask=there)


@triton.jit
def fold_kernel(
    weight, gamma, beta, running_mean, running_var, folded, shift, K, eps, BK: tl.constexpr,
):  # fmt: skip
    """The weights of one output channel times γ/σ, and β − γμ/σ."""
    o, block = tl.program_id(0), tl.program_id(1)
    scale = tl.load(gamma + o) / tl.sqrt(tl.load(running_var + o) + eps)
    k = block * BK + tl.arange(0, BK)
    w = tl.load(weight + o * K + k, mask=k < K, other=0.0).to(tl.float32) * scale
    tl.store(folded + o * K + k, w.to(folded.dtype.element_ty), mask=k < K)
    if block == 0:
        moved = tl.load(beta + o) - tl.load(running_mean + o) * scale
        tl.store(shift + o, moved.to(shift.dtype.element_ty))


class Plan:
    """How the rows and channels of one activation are cut into programs."""

    def __init__(self, x: Tensor, groups: int) -> None:
        self.C = x.shape[1]
        self.R = x.numel() // (self.C * groups)
        self.blocks = triton.cdiv(self.C, CHANNELS)
        columns = groups * self.blocks
        self.S, self.span = self._cut(min(SPLITS, max(1, WAVE // columns)))
        self.finish, self.finish_span = self._cut(max(1, PROGRAMS // columns))
        self.part = (2, groups, self.S, self.C)
        self.sizes = (self.R, self.C, self.S, groups)

    def _cut(self, wanted: int) -> tuple[int, int]:
        """How many programs share a group's rows, and how many rows each has."""
        span = triton.cdiv(triton.cdiv(self.R, wanted), ROWS) * ROWS
        return triton.cdiv(self.R, span), span


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor], groups: int, eps: float, momentum: float,
    *, relu: bool, track: bool, cumulative: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """relu(BN(x) + residual) by each group's own statistics; and those, (2, G, C).

    `running` (mean, variance, count) moves if `track`.
    """
    p = Plan(x, groups)
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
    """The gradients of x, of the shortcut (where there is one), of weight and of bias."""
    p = Plan(x, groups)
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
    """relu(BN(x) + residual) by running statistics, written over x."""
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
    """A convolution's weights with its normalisation by running statistics in them, and a bias."""
    folded, shift = torch.empty_like(weight), weight.new_empty(len(weight))
    K = weight.numel() // len(weight)
    fold_kernel[(len(weight), triton.cdiv(K, FOLDED))](
        weight,
        gamma,
        beta,
        running_mean,
        running_var,
        folded,
        shift,
        K,
        eps,
        BK=FOLDED,
        num_warps=4,
    )
    return folded, shift
