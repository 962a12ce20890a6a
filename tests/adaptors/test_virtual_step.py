"""The outer step through the step of any optimiser, against an unrolled autograd in float64.

The reference writes each optimiser's step as its paper does, differentiably; a test compares its
value with torch's own optimiser. It does not know of factors or of any closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from test_hypergradient import KINDS, LITERAL, LOSSES, SMALL, Inner, Problem, Sizes, relative, sizes
from torch import Tensor

from dualcba import Learner
from dualcba.adaptors.hypergradient import hypergradient, trainable
from dualcba.adaptors.virtual_step import VirtualStep, make_virtual_step
from dualcba.engine.optimizers import make_optimizer
from dualcba.options import TrainingOptions, fill

Make = Callable[..., Learner]
TOLERANCE = 1e-8

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "decay": {"weight_decay": 0.3},
    "momentum": {"momentum": 0.9},
    "momentum-decay": {"momentum": 0.7, "weight_decay": 0.3},
    "nesterov-decay": {"momentum": 0.7, "weight_decay": 0.3, "nesterov": True},
    "adam": {"optimizer": "adam"},
    "adam-decay": {"optimizer": "adam", "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.3},
}


def reference(
    options: TrainingOptions, p: Tensor, g: Tensor, state: dict[str, Tensor], lr: float
) -> Tensor:
    """The step of an optimiser as a function of the gradient; √v̂ of Adam is a constant."""
    decay = options.weight_decay
    if options.optimizer == "sgd":
        g = g + decay * p
        buffer = state["momentum_buffer"] if options.momentum else torch.zeros_like(p)
        velocity = options.momentum * buffer + g
        return p - lr * (g + options.momentum * velocity if options.nesterov else velocity)
    if options.optimizer == "adamw":
        p = p - lr * decay * p
    else:
        g = g + decay * p
    t = float(state["step"]) + 1
    first = options.beta1 * state["exp_avg"] + (1 - options.beta1) * g
    second = options.beta2 * state["exp_avg_sq"] + (1 - options.beta2) * g.detach() ** 2
    corrected = (second / (1 - options.beta2**t)).sqrt() + 1e-8
    return p - lr * first / (1 - options.beta1**t) / corrected


class Optimized(Problem):
    """A problem whose head has been trained for some steps by an optimiser."""

    def __init__(
        self, size: Sizes, kind: dict[str, Any], method: Any, optimizer: dict[str, Any], steps: int
    ) -> None:
        super().__init__(size, kind, method)
        self.options = TrainingOptions(**optimizer)
        fill(self.options, {}, "cba")
        lr = torch.tensor(size.lr, dtype=torch.float64)
        self.optimizer = make_optimizer(list(self.head.parameters()), lr, self.options)
        for _ in range(steps):
            for p in self.head.parameters():
                p.grad = self.normal(*p.shape)
            self.optimizer.step()
        for b in (self.new, *self.mem, self.outer):
            b.z = self.head(b.h).detach()
        self.step = make_virtual_step(self.optimizer, lr, self.options)

    def by_library(self, closed_form: bool | None) -> Tensor:
        grads = hypergradient(
            self.adaptor, self.method, self.new, self.mem, self.outer, self.head, self.step,
            outer_terms=self.outer_terms, closed_form=closed_form,
        )  # fmt: skip
        assert all(g is not None for g in grads)
        return torch.cat([g.flatten() for g in grads if g is not None])

    def virtual(self, inner: Inner, create_graph: bool) -> dict[str, Tensor]:
        theta = {k: p.detach().clone().requires_grad_() for k, p in self.head.named_parameters()}
        forward = [
            b.with_logits(torch.func.functional_call(self.head, theta, (b.h,)))
            for b in (self.new, *self.mem)
        ]
        r = self.adaptor(torch.cat([b.z for b in forward]))
        loss = inner(forward[0], forward[1:], lambda b: self.adaptor.adapt(b.z, r[b.rows]))
        grads = torch.autograd.grad(loss, list(theta.values()), create_graph=create_graph)
        live = dict(self.head.named_parameters())
        return {
            k: reference(
                self.options, p.detach(), g, dict(self.optimizer.state.get(live[k], {})),
                self.size.lr,
            )
            for (k, p), g in zip(theta.items(), grads, strict=True)
        }  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_unrolled_step_of_the_optimizer(name: str, kind: str, loss: str) -> None:
    method, inner, outer = LOSSES[loss]
    for steps in (0, 3):
        size = replace(SMALL, seed=steps, bias=steps > 0 or name != "adam")
        problem = Optimized(size, KINDS[kind], method, OPTIMIZERS[name], steps)
        exact = problem.by_unrolling(inner, outer)
        assert exact.norm() > 0
        assert relative(problem.by_library(closed_form=True), exact) < TOLERANCE


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@given(size=sizes)
@settings(max_examples=8)
def test_problems_of_any_size(name: str, loss: str, size: Sizes) -> None:
    method, inner, outer = LOSSES[loss]
    problem = Optimized(size, KINDS["dual-single"], method, OPTIMIZERS[name], 2)
    exact = problem.by_unrolling(inner, outer)
    assert relative(problem.by_library(closed_form=True), exact) < TOLERANCE
    assert relative(problem.by_library(closed_form=False), exact) < TOLERANCE


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_probability_space_by_autograd(name: str) -> None:
    method, inner, outer = LOSSES["ce+mse"]
    kind = LITERAL["dual-individual-probability"]
    problem = Optimized(SMALL, kind, method, OPTIMIZERS[name], 3)
    exact = problem.by_unrolling(inner, outer)
    assert relative(problem.by_library(None), exact) < TOLERANCE


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_reference_and_the_virtual_step_are_torchs_step(name: str, steps: int) -> None:
    problem = Optimized(SMALL, {}, LOSSES["ce"][0], OPTIMIZERS[name], steps)
    live = list(problem.head.parameters())
    grads = [problem.normal(*p.shape) for p in live]
    assert not isinstance(problem.step, Tensor)
    virtual, unrolled = [], []
    for p, g in zip(live, grads, strict=True):
        with torch.no_grad():
            moved, factor = problem.step.moved(p, g)
        state = dict(problem.optimizer.state.get(p, {}))
        step = reference(problem.options, p.detach(), g.requires_grad_(), state, problem.size.lr)
        (slope,) = torch.autograd.grad(step.sum(), g)  # of each entry, in its own gradient
        torch.testing.assert_close(factor.expand_as(p), -slope, rtol=1e-12, atol=1e-12)
        virtual.append(moved)
        unrolled.append(step.detach())
        p.grad = g.detach()
    problem.optimizer.step()
    torch.testing.assert_close([p.detach() for p in live], virtual, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close([p.detach() for p in live], unrolled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:observed y is")
def test_a_learner_takes_its_virtual_step(
    name: str, make_learner: Make, make_batches: Any, monkeypatch: Any
) -> None:
    """What the virtual step makes of the real gradient is the weight after the real step."""
    learner = make_learner("er-dual-cba", outer_every=1, lr=0.01, **OPTIMIZERS[name])
    step: VirtualStep | Tensor = learner.parts.outer_loop.virtual
    assert not isinstance(step, Tensor)
    head, real, checked = learner.network.head, learner.parts.optimizer.step, []

    def watch(*args: Any) -> None:
        live = list(head.parameters())
        with torch.no_grad():
            want = [step.moved(p, p.grad)[0] for p in live]  # type: ignore[arg-type]
        real(*args)
        torch.testing.assert_close([p.detach() for p in live], want, rtol=1e-5, atol=1e-6)
        checked.append(len(live))

    monkeypatch.setattr(learner.parts.optimizer, "step", watch)
    for task, batches in enumerate(make_batches(2, steps=3)):
        learner.new_task([2 * task, 2 * task + 1])
        for x, y in batches:
            learner.observe(x, y)
    assert checked == [2] * 6


def test_the_virtual_step_of_sgd_has_a_rate_of_its_own(make_learner: Make) -> None:
    plain = make_learner("er-cba", lr=0.02)
    assert plain.parts.outer_loop.virtual is plain.parts.context.lr
    same = make_learner("er-cba", lr=0.02, optimizer="adam", virtual="sgd")
    assert same.parts.outer_loop.virtual is same.parts.context.lr
    own = make_learner("er-cba", optimizer="adam", virtual="sgd", virtual_lr=0.3)
    assert isinstance(own.parts.outer_loop.virtual, Tensor)
    assert float(own.parts.outer_loop.virtual) == pytest.approx(0.3)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:observed y is")
def test_the_adaptor_learns_with_every_optimizer(
    name: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner("derpp-dual-cba", outer_every=1, **{"lr": 0.01, **OPTIMIZERS[name]})
    phi = [p.detach().clone() for p in trainable(learner.adaptor)]  # type: ignore[arg-type]
    for task, batches in enumerate(make_batches(2, steps=2)):
        learner.new_task([2 * task, 2 * task + 1])
        for x, y in batches:
            learner.observe(x, y)
    moved = trainable(learner.adaptor)  # type: ignore[arg-type]
    assert any(not torch.equal(a, b) for a, b in zip(phi, moved, strict=True))
