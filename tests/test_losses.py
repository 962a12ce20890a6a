"""The closed forms of each term against torch's losses and autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualcba.losses import (
    Batch,
    CrossEntropy,
    Divergence,
    MeanSquaredError,
    Shifted,
    Term,
    identity,
    merge_terms,
    stack_rows,
    total,
)

Make = Callable[[Batch, torch.Generator], tuple[Term, Callable[[Tensor], Tensor]]]


def batch(n: int, C: int, rng: torch.Generator) -> Batch:
    z = 3 * torch.randn(n, C, generator=rng, dtype=torch.float64)
    return Batch(z, torch.randint(0, C, (n,), generator=rng), z, z)


def plain(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    return CrossEntropy(b, weight=0.7), lambda z: 0.7 * F.cross_entropy(z, b.y)


def masked(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    mask = torch.rand(b.z.shape[1], generator=rng) < 0.5
    mask[b.y] = True

    def oracle(z: Tensor) -> Tensor:
        inside = z[:, mask]
        where = torch.cumsum(mask, 0)[b.y] - 1
        return F.cross_entropy(inside, where)

    return CrossEntropy(b, classes=mask), oracle


def weighted(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    each = torch.rand(len(b.y), generator=rng)

    def oracle(z: Tensor) -> Tensor:
        rows = zip(each.double(), z.log_softmax(1), b.y, strict=True)
        return 0.5 * torch.stack([-w * row[y] for w, row, y in rows]).mean()

    return CrossEntropy(replace(b, each=each), weight=0.5), oracle


def squares(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    target = torch.randn(b.z.shape, generator=rng, dtype=torch.float64)
    return MeanSquaredError(b, target, weight=0.2), lambda z: 0.2 * ((z - target) ** 2).mean()


def divergence(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    target = 3 * torch.randn(b.z.shape, generator=rng, dtype=torch.float64)
    each, T = torch.rand(len(b.y), generator=rng, dtype=torch.float64), 2.5
    p = (target / T).softmax(1)

    def oracle(z: Tensor) -> Tensor:
        q = (z / T).softmax(1)
        return 0.3 * T**2 * ((p * (p / q).log()).sum(1) * each).mean()

    return Divergence(replace(b, each=each), target, T, weight=0.3), oracle


def shifted(b: Batch, rng: torch.Generator) -> tuple[Term, Callable[[Tensor], Tensor]]:
    shift = torch.randn(b.z.shape[1], generator=rng, dtype=torch.float64)
    return Shifted(CrossEntropy(b), shift), lambda z: F.cross_entropy(z + shift, b.y)


TERMS = [plain, masked, weighted, squares, divergence, shifted]


@pytest.mark.parametrize("make", TERMS)
@given(n=st.integers(1, 7), C=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_value_gradient_and_curvature(make: Make, n: int, C: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    b = batch(n, C, rng)
    term, oracle = make(b, rng)
    z = b.z.clone().requires_grad_()
    s = torch.randn(n, C, generator=rng, dtype=torch.float64)
    value = oracle(z)
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    (curvature,) = torch.autograd.grad((gradient * s).sum(), z)
    close = {"rtol": 1e-10, "atol": 1e-13}
    torch.testing.assert_close(term.value(b.z), value.detach(), **close)
    torch.testing.assert_close(term.gradient(b.z), gradient.detach(), **close)
    torch.testing.assert_close(term.curvature(b.z, s), curvature, **close)


@pytest.mark.parametrize("make", TERMS)
def test_the_value_can_be_differentiated(make: Make) -> None:
    rng = torch.Generator().manual_seed(0)
    b = batch(4, 5, rng)
    term, _ = make(b, rng)
    z = b.z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(term.value(z), z)
    torch.testing.assert_close(term.gradient(b.z), gradient)


def test_closed_forms_keep_no_graph_of_their_target() -> None:
    b = batch(3, 4, torch.Generator().manual_seed(0))
    term = MeanSquaredError(b, torch.zeros(3, 4, dtype=torch.float64))
    assert not term.gradient(b.z).requires_grad


def test_total_sums_adapted_and_raw_terms() -> None:
    rng = torch.Generator().manual_seed(0)
    one, two = batch(3, 4, rng), batch(2, 4, rng)
    terms: list[Term] = [CrossEntropy(one, 2.0), CrossEntropy(two, adapted=False)]
    got = total(terms, lambda b: b.z + b.y[:, None])
    want = 2 * F.cross_entropy(one.z + one.y[:, None], one.y) + F.cross_entropy(two.z, two.y)
    torch.testing.assert_close(got, want)
    kept: list[Term] = [Shifted(terms[1], torch.zeros(4))]  # raw, as its term
    torch.testing.assert_close(total(kept, lambda b: b.z + b.y[:, None]), terms[1].value(two.z))
    torch.testing.assert_close(total(terms[:1], identity), 2 * F.cross_entropy(one.z, one.y))


def test_the_loss_is_always_a_scalar() -> None:
    b = batch(3, 4, torch.Generator().manual_seed(0))
    assert total([CrossEntropy(b)], identity).shape == ()
    assert total([CrossEntropy(b)] * 3, identity).shape == ()


def test_the_same_batch_with_other_logits() -> None:
    b = batch(3, 4, torch.Generator().manual_seed(0))
    b.rows = slice(2, 5)
    other = b.with_logits(b.z + 1)
    assert other is not b
    assert torch.equal(other.z, b.z + 1)
    assert (other.x is b.x, other.y is b.y, other.h is b.h, other.rows) == (
        True, True, True, slice(2, 5),
    )  # fmt: skip


# ---------------------------------------------------------------- merging


def placed(sizes: list[int], C: int = 4) -> list[Batch]:
    """Return batches of random logits with consecutive rows."""
    rng, end, out = torch.Generator().manual_seed(0), 0, []
    for n in sizes:
        b = batch(n, C, rng)
        b.rows = slice(end, end := end + n)
        out.append(b)
    return out


def test_rows_of_a_joint_forward_pass_are_stacked_without_a_copy() -> None:
    whole = torch.randn(7, 3, requires_grad=True) * 2
    parts = torch.split(whole, [1, 4, 2])
    out = stack_rows(parts)
    assert out.data_ptr() == whole.data_ptr()
    assert torch.equal(out, whole)
    assert not out.requires_grad
    assert stack_rows(parts[1:2]).data_ptr() == parts[1].data_ptr()


@pytest.mark.parametrize(
    "parts",
    [
        [torch.randn(2, 3), torch.randn(4, 3)],
        [(whole := torch.randn(6, 3))[4:], whole[:4]],
        [whole[:2], whole[3:]],
        [whole[:2], whole[:2]],
        [whole.T[:1], whole.T[1:]],
        [whole[:, :2], whole[:, :2]],
        [torch.randn(2, 3), torch.randn(3, 3)[2:]],  # at the place after it, but in other memory
    ],
)
def test_other_rows_are_copied(parts: list[Tensor]) -> None:
    out = stack_rows(parts)
    assert torch.equal(out, torch.cat(parts))
    assert out.data_ptr() != parts[0].data_ptr()


def test_cross_entropies_of_neighbours_are_merged() -> None:
    a, b, c = placed([3, 3, 6])
    terms: list[Term] = [CrossEntropy(a, 0.5), CrossEntropy(b, 0.5), CrossEntropy(c)]
    (one,) = merge_terms(terms)
    z = torch.cat([t.batch.z for t in terms])
    s = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(1))
    assert one.batch.rows == slice(0, 12)
    apart = [t.gradient(t.batch.z) for t in terms]
    torch.testing.assert_close(one.gradient(z), torch.cat(apart))
    apart = [t.curvature(t.batch.z, s[t.batch.rows]) for t in terms]
    torch.testing.assert_close(one.curvature(z, s), torch.cat(apart))


def test_what_differs_is_not_merged() -> None:
    a, b = placed([3, 3])
    mask, each, none = torch.ones(4, dtype=torch.bool), torch.ones(3), Batch(a.x, a.y, a.z, a.h)
    others: list[tuple[Term, Term]] = [
        (CrossEntropy(a), CrossEntropy(b, 0.5)),
        (CrossEntropy(a), CrossEntropy(b, adapted=False)),
        (CrossEntropy(a), CrossEntropy(b, classes=mask)),
        (CrossEntropy(a, each=each), CrossEntropy(b)),
        (CrossEntropy(a), MeanSquaredError(b, b.z)),
        (CrossEntropy(b), CrossEntropy(a)),  # wrong order
        (CrossEntropy(none), CrossEntropy(none)),  # without rows
    ]
    for pair in others:
        kept = merge_terms(pair)
        assert all(x is y for x, y in zip(kept, pair, strict=True))
