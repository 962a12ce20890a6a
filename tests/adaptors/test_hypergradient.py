"""The hypergradient against an unrolled autograd and against finite differences, in float64.

Both oracles work on the virtual step as the paper writes it, W' = W − α ∂L_trn/∂W, with losses
from torch and not from `dualcba.losses`; neither knows of G, S or any closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dualcba.adaptors.adaptor import _MLP, Adaptor
from dualcba.adaptors.hypergradient import (
    _sum_at_rows,
    buffer_gradient,
    hypergradient,
    inner_gradient,
    trainable,
)
from dualcba.adaptors.outer_loss import make_outer_terms
from dualcba.losses import Adapt, Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods import Method
from dualcba.methods.er import ER
from dualcba.nets.heads import CosineHead
from dualcba.tasks.class_sets import ClassSets

TOLERANCE = 1e-8

KINDS: dict[str, dict[str, Any]] = {
    "cba": {"agnostic": False, "continual": True},
    "dual-single": {},
    "dual-single-divide": {"divide": True},
    "dual-individual": {"specific": "individual"},
    "dual-individual-divide": {"specific": "individual", "divide": True},
    "agnostic": {"specific": "none"},
    "agnostic-divide": {"specific": "none", "divide": True},
    "specific-single": {"agnostic": False},
    "specific-individual": {"specific": "individual", "agnostic": False},
}
LITERAL = {f"{k}-probability": {**v, "space": "probability"} for k, v in KINDS.items()}
FURTHER: dict[str, dict[str, Any]] = {
    "cba-strength": {"agnostic": False, "continual": True, "strength": True},
    "dual-strength": {"strength": True},
    "individual-strength": {"specific": "individual", "strength": True},
    "agnostic-strength-divide": {"specific": "none", "divide": True, "strength": True},
    "cba-prior": {"agnostic": False, "continual": True, "prior": True},
    "dual-prior": {"prior": True},
    "dual-counts": {"counts": True},
    "agnostic-counts-divide": {"specific": "none", "counts": True, "divide": True},
    "dual-strength-counts-prior": {"strength": True, "counts": True, "prior": True},
    "individual-strength-prior": {"specific": "individual", "strength": True, "prior": True},
}
"""Ingredients of further kinds, in logit space."""


class TwoDraws(Method):
    """CE(new) + 0.2 MSE(mem₁) + 0.5 CE(mem₂), as DER++ has it."""

    draws = 2

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        return [
            CrossEntropy(new),
            MeanSquaredError(mem[0], mem[0].columns["logits"], weight=0.2),
            CrossEntropy(mem[1], weight=0.5),
        ]

    def outer_terms(self, outer_batch: Batch) -> list[Term]:
        return [
            CrossEntropy(outer_batch),
            MeanSquaredError(outer_batch, outer_batch.columns["raw_logits"]),
        ]


class Mixed(Method):
    """Every feature of the terms: a mask of classes, weights per sample, a term left raw."""

    draws = 2

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        return [
            CrossEntropy(new, classes=new.columns["mask"]),
            CrossEntropy(mem[0], weight=0.7, each=mem[0].columns["each"]),
            MeanSquaredError(mem[0], mem[0].columns["logits"], weight=0.1, adapted=False),
            CrossEntropy(mem[1], weight=0.3, adapted=False),
        ]


class Own(Method):
    """A loss that is no sum of terms: label smoothing, and the square of a mean."""

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        smooth = F.cross_entropy(adapt(new), new.y, label_smoothing=0.1)
        return smooth + F.cross_entropy(adapt(mem[0]), mem[0].y) ** 2


def er_loss(new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
    return F.cross_entropy(adapt(new), new.y) + F.cross_entropy(adapt(mem[0]), mem[0].y)


def two_draws_loss(new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
    first, second = mem
    return (
        F.cross_entropy(adapt(new), new.y)
        + 0.2 * F.mse_loss(adapt(first), first.columns["logits"])
        + 0.5 * F.cross_entropy(adapt(second), second.y)
    )


def mixed_loss(new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
    first, second = mem
    masked = adapt(new).masked_fill(~new.columns["mask"], -torch.inf)
    each = F.cross_entropy(adapt(first), first.y, reduction="none")
    return (
        F.cross_entropy(masked, new.y)
        + 0.7 * (each * first.columns["each"]).mean()
        + 0.1 * F.mse_loss(first.z, first.columns["logits"])
        + 0.3 * F.cross_entropy(second.z, second.y)
    )


def ce_outer(outer: Batch) -> Tensor:
    return F.cross_entropy(outer.z, outer.y)


def ce_mse_outer(outer: Batch) -> Tensor:
    return ce_outer(outer) + F.mse_loss(outer.z, outer.columns["raw_logits"])


Inner = Callable[[Batch, Sequence[Batch], Adapt], Tensor]
Outer = Callable[[Batch], Tensor]
LOSSES: dict[str, tuple[type[Method], Inner, Outer]] = {
    "ce": (ER, er_loss, ce_outer),
    "ce+mse": (TwoDraws, two_draws_loss, ce_mse_outer),
}


@dataclass
class Sizes:
    new: int
    mem: int
    outer: int
    features: int
    old: int
    fresh: int
    unseen: int
    width: int
    bias: bool
    lr: float
    seed: int

    @property
    def classes(self) -> int:
        return self.old + self.fresh + self.unseen


counts = st.integers(1, 6)
sizes = st.builds(
    Sizes,
    new=counts, mem=counts, outer=counts, features=st.integers(1, 8), old=st.integers(1, 4),
    fresh=st.integers(1, 3), unseen=st.integers(0, 2), width=st.integers(2, 12),
    bias=st.booleans(), lr=st.floats(0.03, 1.0), seed=st.integers(0, 2**31),
)  # fmt: skip


class Problem:
    """A head, an adaptor after two or more tasks, and batches of random features."""

    def __init__(
        self, size: Sizes, kind: dict[str, Any], method: type[Method], *, firm: bool = False,
        cosine: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.rng = torch.Generator().manual_seed(size.seed)
        self.size = size
        self.method = method()
        self.head: nn.Module = nn.Linear(size.features, size.classes, bias=size.bias).double()
        for p in self.head.parameters():
            p.data = self.normal(*p.shape)
        if cosine is not None:
            self.head = CosineHead(self.normal(size.classes, size.features), **cosine)
        sets = ClassSets(size.classes)
        sets.new_task(range(size.old))
        sets.new_task(range(size.old, size.old + size.fresh))
        self.adaptor = Adaptor(sets, width=size.width, generator=self.rng, **kind).double()
        self._shake(firm)
        self.new = self.batch(size.new, size.old, size.old + size.fresh)
        self.mem = [self.batch(size.mem, 0, size.old + size.fresh) for _ in range(method.draws)]
        start = 0
        for b in (self.new, *self.mem):
            b.rows = slice(start, start + len(b.y))
            start += len(b.y)
        self.outer = self.batch(size.outer, 0, size.old + size.fresh)
        self.outer.frequencies = 3 * torch.arange(size.classes, dtype=torch.float64)
        self.outer_terms = make_outer_terms("method", self.method, sets)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, dtype=torch.float64)

    def _shake(self, firm: bool) -> None:
        """Weights as after some learning.

        Finite differences across a kink of a ReLU mean nothing: `firm` has every hidden unit on
        for all samples or off for all of them. Otherwise most are on for some and off for others.
        """
        for mlp in self.adaptor.modules():
            if isinstance(mlp, _MLP):
                weight, bias = mlp.hidden.weight.data, mlp.hidden.bias.data
                bias.copy_(0.2 * self.normal(len(bias)))
                if firm:
                    weight /= weight.abs().sum(1, keepdim=True)  # |w·p| ≤ 1
                    sign = torch.where(self.normal(len(bias)) > -0.3, 1.0, -1.0)
                    bias.copy_(sign * (1.2 + self.normal(len(bias)).abs()))
                mlp.output.bias.data.copy_(self.normal(len(mlp.output.bias)))
        for name, p in self.adaptor.named_parameters():
            if name.endswith("strength"):
                p.data.fill_(0.7)
            if name.endswith("counts"):
                p.data.copy_(0.1 * torch.arange(p.numel()).view_as(p).sin())
        for b in self.adaptor.buffers():
            b.copy_(torch.arange(1.0, 1 + b.numel()).view_as(b))

    def batch(self, n: int, low: int, high: int) -> Batch:
        C = self.size.classes
        h = self.normal(n, self.size.features)
        y = torch.randint(low, high, (n,), generator=self.rng)
        columns = {
            "logits": self.normal(n, C),
            "raw_logits": self.normal(n, C),
            "each": self.normal(n).abs(),
            "mask": torch.arange(C) >= low,
        }
        with torch.no_grad():
            z = self.head(h)
        return Batch(h, y, z, h, columns)

    def by_library(self, closed_form: bool | None) -> Tensor:
        grads = hypergradient(
            self.adaptor, self.method, self.new, self.mem, self.outer, self.head, self.size.lr,
            outer_terms=self.outer_terms, closed_form=closed_form,
        )  # fmt: skip
        parts = zip(grads, trainable(self.adaptor), strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in parts])

    def virtual(self, inner: Inner, create_graph: bool) -> dict[str, Tensor]:
        """The head's parameters after one step on the inner loss, as functions of φ."""
        theta = {k: p.detach().clone().requires_grad_() for k, p in self.head.named_parameters()}

        def forward(b: Batch) -> Batch:
            return b.with_logits(torch.func.functional_call(self.head, theta, (b.h,)))

        new, *mem = (forward(b) for b in (self.new, *self.mem))
        r = self.adaptor(torch.cat([b.z for b in (new, *mem)]))
        loss = inner(new, mem, lambda b: self.adaptor.adapt(b.z, r[b.rows]))
        grads = torch.autograd.grad(loss, list(theta.values()), create_graph=create_graph)
        lr = self.size.lr
        return {k: p - lr * g for (k, p), g in zip(theta.items(), grads, strict=True)}

    def outer_loss(self, inner: Inner, outer: Outer, *, create_graph: bool = False) -> Tensor:
        theta = self.virtual(inner, create_graph)
        z = torch.func.functional_call(self.head, theta, (self.outer.h,))
        return outer(self.outer.with_logits(z))

    def by_unrolling(self, inner: Inner, outer: Outer) -> Tensor:
        loss = self.outer_loss(inner, outer, create_graph=True)
        grads = torch.autograd.grad(loss, trainable(self.adaptor))
        return torch.cat([g.flatten() for g in grads])

    def by_differences(
        self, inner: Inner, outer: Outer, directions: Tensor, h: float = 0.01
    ) -> Tensor:
        """Slopes of the outer loss along unit directions in φ."""
        return self.slopes(lambda: self.outer_loss(inner, outer), directions, h)

    def slopes(self, loss: Callable[[], Tensor], directions: Tensor, h: float = 0.01) -> Tensor:
        """Slopes of a loss along unit directions in φ: six points, error of order h⁶."""
        phi = parameters_to_vector(self.adaptor.parameters()).detach()

        def at(v: Tensor) -> float:
            vector_to_parameters(v, self.adaptor.parameters())
            return float(loss().detach())

        stencil = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
        slopes = [
            sum(w * (at(phi + k * h * v) - at(phi - k * h * v)) for k, w in stencil.items()) / h
            for v in directions
        ]
        vector_to_parameters(phi, self.adaptor.parameters())
        return torch.tensor(slopes, dtype=torch.float64)

    def directions(self, count: int) -> Tensor:
        n = parameters_to_vector(self.adaptor.parameters()).numel()
        q, _ = torch.linalg.qr(self.normal(n, min(count, n)))
        return q.T


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@given(size=sizes)
@settings(max_examples=25)
def test_equals_the_unrolled_virtual_step(kind: str, loss: str, size: Sizes) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Problem(size, KINDS[kind], method)
    exact = problem.by_unrolling(inner, outer)
    assert exact.norm() > 0
    assert relative(problem.by_library(closed_form=True), exact) < TOLERANCE
    assert relative(problem.by_library(closed_form=False), exact) < TOLERANCE


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", FURTHER)
@given(size=sizes)
@settings(max_examples=10)
def test_further_ingredients_equal_the_unrolled_virtual_step_and_finite_differences(
    kind: str, loss: str, size: Sizes
) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Problem(size, FURTHER[kind], method, firm=True)
    exact = problem.by_unrolling(inner, outer)
    assert relative(problem.by_library(closed_form=True), exact) < TOLERANCE
    assert relative(problem.by_library(closed_form=False), exact) < TOLERANCE
    directions = problem.directions(4)
    slopes = problem.by_differences(inner, outer, directions)
    torch.testing.assert_close(directions @ exact, slopes, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("learnt", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "kind", ["cba", "dual-single", "dual-individual-divide", "cba-probability"]
)
@given(size=sizes, scale=st.floats(0.5, 20.0))
@settings(max_examples=5)
def test_cosine_heads_equal_the_unrolled_virtual_step(
    kind: str, loss: str, size: Sizes, scale: float, learnt: bool
) -> None:
    method, inner, outer = LOSSES[loss]
    size = replace(size, features=1 + size.features)  # in one dimension a cosine is constant
    given = {"scale": scale, "learnt": learnt}
    problem = Problem(size, (KINDS | LITERAL)[kind], method, cosine=given)
    exact = problem.by_unrolling(inner, outer)
    for closed_form in (None, False):
        error = (problem.by_library(closed_form) - exact).norm()
        assert error <= TOLERANCE * exact.norm()


@pytest.mark.parametrize("learnt", [True, False])
def test_cosine_heads_equal_finite_differences(learnt: bool) -> None:
    given = {"scale": 4.0, "learnt": learnt}
    problem = Problem(SMALL, {}, ER, firm=True, cosine=given)
    _, inner, outer = LOSSES["ce"]
    directions = problem.directions(4)
    slopes = problem.by_differences(inner, outer, directions)
    assert slopes.norm() > 1e-6
    assert relative(directions @ problem.by_library(closed_form=True), slopes) < TOLERANCE


@pytest.mark.parametrize("kind", ["cba-strength", "dual-strength", "individual-strength"])
def test_at_strength_zero_only_the_strength_has_a_gradient(kind: str) -> None:
    problem = Problem(SMALL, FURTHER[kind], ER)
    for name, p in problem.adaptor.named_parameters():
        if name.endswith("strength"):
            p.data.zero_()
    args = problem.new, problem.mem, problem.outer, problem.head, 0.3
    grads = hypergradient(problem.adaptor, problem.method, *args)
    for (name, _), g in zip(problem.adaptor.named_parameters(), grads, strict=True):
        assert g is not None
        assert bool(g.any()) == name.endswith("strength")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", LITERAL)
@given(size=sizes)
@settings(max_examples=15)
def test_equals_the_unrolled_virtual_step_in_probability_space(
    kind: str, loss: str, size: Sizes
) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Problem(size, LITERAL[kind], method)
    exact = problem.by_unrolling(inner, outer)
    assert relative(problem.by_library(closed_form=None), exact) < TOLERANCE


@pytest.mark.no_cover  # the lines are those of the tests above
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS | LITERAL)
@given(size=sizes)
@settings(max_examples=10)
def test_equals_finite_differences(kind: str, loss: str, size: Sizes) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Problem(size, (KINDS | LITERAL)[kind], method, firm=True)
    directions = problem.directions(4)
    slopes = problem.by_differences(inner, outer, directions)
    assert relative(directions @ problem.by_library(closed_form=None), slopes) < TOLERANCE
    assert relative(directions @ problem.by_library(closed_form=False), slopes) < TOLERANCE


@pytest.mark.parametrize("closed_form", [True, False])
@given(size=sizes)
@settings(max_examples=40)
def test_masks_sample_weights_and_raw_terms(closed_form: bool, size: Sizes) -> None:
    problem = Problem(size, {}, Mixed)
    exact = problem.by_unrolling(mixed_loss, ce_outer)
    error = (problem.by_library(closed_form) - exact).norm()
    # with one class in the mask and none seen beside it the gradient may be exactly zero
    assert error <= TOLERANCE * exact.norm()


@given(size=sizes)
@settings(max_examples=10)
def test_a_loss_of_ones_own_takes_the_road_by_autograd(size: Sizes) -> None:
    problem = Problem(size, {}, Own)
    assert not problem.method.closed_form
    exact = problem.by_unrolling(lambda *a: Own().loss(*a), ce_outer)
    assert relative(problem.by_library(closed_form=None), exact) < TOLERANCE


@pytest.mark.parametrize(
    ("method", "space", "closed"),
    [(ER, "logit", True), (ER, "probability", False), (Own, "logit", False)],
)
def test_the_closed_form_is_the_fast_path(
    method: type[Method], space: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    for name in ("_closed_form", "_by_autograd"):
        monkeypatch.setattr(
            f"dualcba.adaptors.hypergradient.{name}", lambda *_, n=name: taken.append(n)
        )
    problem = Problem(SMALL, {"space": space}, method)
    hypergradient(
        problem.adaptor, problem.method, problem.new, problem.mem, problem.outer, problem.head, 0.1
    )
    assert taken == ["_closed_form" if closed else "_by_autograd"]


SMALL = Sizes(4, 3, 5, 6, 2, 2, 1, 7, bias=True, lr=0.3, seed=3)


@pytest.mark.parametrize("closed_form", [True, False])
def test_the_learning_rate_may_be_a_tensor(closed_form: bool) -> None:
    problem = Problem(replace(SMALL), {}, ER)  # other tests use the number in SMALL
    number = problem.by_library(closed_form)
    problem.size.lr = torch.tensor(0.3, dtype=torch.float64)  # type: ignore[assignment]
    assert torch.equal(problem.by_library(closed_form), number)


@pytest.mark.parametrize("closed_form", [True, False])
def test_no_graph_of_the_backbone(closed_form: bool) -> None:
    """Features and logits that carry a graph are taken as constants, and that graph stays whole."""
    problem = Problem(SMALL, {}, ER)
    plain = problem.by_library(closed_form)
    backbone = nn.Linear(6, 6).double()
    backbone.weight.data = torch.eye(6, dtype=torch.float64)
    backbone.bias.data.zero_()
    for b in (problem.new, *problem.mem):
        b.h = backbone(b.h)
        b.z = problem.head(b.h)
    assert relative(problem.by_library(closed_form), plain) < 1e-12
    for module in (backbone, problem.head, problem.adaptor):
        assert all(p.grad is None for p in module.parameters())
    er_loss(problem.new, problem.mem, lambda b: b.z).backward()  # θ's own step comes after


@pytest.mark.parametrize("closed_form", [True, False])
def test_the_logits_of_the_outer_draw_are_not_used(closed_form: bool) -> None:
    problem = Problem(SMALL, {}, ER)
    plain = problem.by_library(closed_form)
    problem.outer.z = torch.full_like(problem.outer.z, torch.nan)
    assert torch.equal(problem.by_library(closed_form), plain)


def test_frozen_parts_have_no_gradient() -> None:
    problem = Problem(SMALL, {}, ER)
    whole = problem.by_library(True)
    assert problem.adaptor.agnostic is not None
    specific = sum(p.numel() for p in problem.adaptor.specific.parameters())  # type: ignore[union-attr]
    problem.adaptor.agnostic.requires_grad_(False)
    part = problem.by_library(True)
    assert torch.equal(part, whole[:specific])


def test_steepest_descent_lowers_the_outer_loss() -> None:
    problem = Problem(SMALL, {}, ER)
    before = float(problem.outer_loss(er_loss, ce_outer).detach())
    g = problem.by_library(None)
    phi = parameters_to_vector(problem.adaptor.parameters()).detach()
    vector_to_parameters(phi - 0.1 * g / g.norm(), problem.adaptor.parameters())
    assert float(problem.outer_loss(er_loss, ce_outer).detach()) < before


# ---------------------------------------------------------------- other outer losses


def adjusted_outer(outer: Batch) -> Tensor:
    """Cross-entropy of z + log(frequency + 1) for seen classes, which is centred over them."""
    assert outer.frequencies is not None
    logs = torch.log(outer.frequencies + 1)[SEEN]
    shift = torch.zeros_like(outer.frequencies)
    shift[SEEN] = logs - logs.mean()
    return F.cross_entropy(outer.z + shift, outer.y)


SEEN = slice(0, 4)
OUTER: dict[str, Outer] = {"method": ce_mse_outer, "ce": ce_outer, "adjusted": adjusted_outer}


@pytest.mark.parametrize("loss", OUTER)
@pytest.mark.parametrize("kind", ["cba", "dual-single", "dual-individual-probability"])
@pytest.mark.parametrize("seed", range(3))
def test_every_outer_loss(loss: str, kind: str, seed: int) -> None:
    size = replace(SMALL, seed=seed)
    problem = Problem(size, (KINDS | LITERAL)[kind], TwoDraws)
    problem.outer_terms = make_outer_terms(loss, problem.method, problem.adaptor.sets)
    exact = problem.by_unrolling(two_draws_loss, OUTER[loss])
    assert relative(problem.by_library(None), exact) < TOLERANCE
    assert relative(problem.by_library(closed_form=False), exact) < TOLERANCE
    mine = buffer_gradient(problem.adaptor, problem.method, problem.outer, problem.outer_terms)
    by_hand = torch.autograd.grad(buffer_loss(problem, OUTER[loss]), trainable(problem.adaptor))
    assert relative(flat(mine), flat(by_hand)) < TOLERANCE


# ---------------------------------------------------------------- a single level


def joint_loss(problem: Problem, inner: Inner) -> Tensor:
    """L_trn with each batch adapted by itself."""
    g = problem.adaptor
    return inner(problem.new, problem.mem, lambda b: g.adapt(b.z, g(b.z)))


def buffer_loss(problem: Problem, outer: Outer) -> Tensor:
    """L_buf of the adapted network."""
    g, draw = problem.adaptor, problem.outer
    return outer(draw.with_logits(g.adapt(draw.z, g(draw.z))))


def flat(grads: Sequence[Tensor | None]) -> Tensor:
    assert all(g is not None for g in grads)
    return torch.cat([g.flatten() for g in grads])  # type: ignore[union-attr]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS | LITERAL)
@given(size=sizes)
@settings(max_examples=6)
def test_the_gradients_of_a_single_level(kind: str, loss: str, size: Sizes) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Problem(size, (KINDS | LITERAL)[kind], method, firm=True)
    directions = problem.directions(3)
    phi = trainable(problem.adaptor)
    joint = flat(inner_gradient(problem.adaptor, problem.method, problem.new, problem.mem))
    buffer = flat(buffer_gradient(problem.adaptor, problem.method, problem.outer))
    for mine, by_hand in (
        (joint, lambda: joint_loss(problem, inner)),
        (buffer, lambda: buffer_loss(problem, outer)),
    ):
        assert relative(mine, flat(torch.autograd.grad(by_hand(), phi))) < TOLERANCE
        slopes = problem.slopes(by_hand, directions)
        torch.testing.assert_close(directions @ mine, slopes, rtol=1e-7, atol=1e-10)


def test_a_single_level_takes_logits_as_constants() -> None:
    problem = Problem(SMALL, {}, ER)
    args = problem.adaptor, problem.method, problem.new, problem.mem
    plain = flat(inner_gradient(*args)), flat(buffer_gradient(*args[:2], problem.outer))
    backbone = nn.Linear(6, 6).double()
    backbone.weight.data, backbone.bias.data = torch.eye(6).double(), torch.zeros(6).double()
    for b in (problem.new, *problem.mem, problem.outer):
        b.z = problem.head(backbone(b.h))
    with torch.no_grad():  # as it may be called
        again = flat(inner_gradient(*args)), flat(buffer_gradient(*args[:2], problem.outer))
    assert all(relative(a, b) < 1e-12 for a, b in zip(again, plain, strict=True))
    assert all(p.grad is None for p in (*backbone.parameters(), *problem.adaptor.parameters()))


# ---------------------------------------------------------------- parts of a matrix


@pytest.mark.parametrize(
    "rows",
    [
        [slice(0, 6)],
        [slice(0, 2), slice(2, 6)],
        [slice(0, 6), slice(2, 4)],
        [slice(0, 2), slice(0, 2), slice(2, 6), slice(1, 3)],
        [slice(2, 6), slice(0, 2)],
        [slice(2, 4)],
        [slice(None), slice(1, 2)],
        [],
    ],
)
def test_parts_are_summed_at_their_rows(rows: list[slice]) -> None:
    Z, rng = torch.zeros(6, 3), torch.Generator().manual_seed(0)
    parts = [(k, torch.randn(Z[k].shape, generator=rng)) for k in rows]
    kept = [part.clone() for _, part in parts]
    want = torch.zeros_like(Z)
    for k, part in parts:
        want[k] += part
    torch.testing.assert_close(_sum_at_rows(Z, parts), want)
    assert all(torch.equal(part, old) for (_, part), old in zip(parts, kept, strict=True))
