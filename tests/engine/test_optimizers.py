"""The optimisers equal torch's and do not import the compiler."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba.engine import optimizers
from dualcba.engine.optimizers import largest_update, make_optimizer
from dualcba.options import TrainingOptions, fill

LEARN = """
import sys, torch
from torch import nn
from dualcba import Learner
net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
learner = Learner(net, (3,), 4, method="er-dual-cba", buffer=8, batch_size=4, outer_every=1,
                  dtype=torch.float32, device={device!r})
for task in ([0, 1], [2, 3]):
    learner.new_task(task)
    for _ in range(4):
        learner.observe(torch.randn(4, 3), torch.tensor(task * 2))
learner.predict(torch.randn(4, 3))
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_they_equal_torchs(name: str) -> None:
    ends: list[list[Tensor]] = []
    for library in (torch.optim, optimizers):
        torch.manual_seed(0)
        p = torch.randn(5, requires_grad=True)
        optimizer = getattr(library, name)([p], lr=0.1, fused=True)
        assert isinstance(optimizer, getattr(torch.optim, name))
        for _ in range(3):
            optimizer.zero_grad()
            assert p.grad is None
            (p**3).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert p.requires_grad
        state = optimizer.state_dict()["state"].get(0, {})
        ends.append([p.detach(), *(v for v in state.values() if isinstance(v, Tensor))])
    assert len(ends[0]) == len(ends[1])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


FURTHER: list[tuple[str, dict[str, Any]]] = [
    *((name, {"maximize": True}) for name in ("SGD", "Adam", "AdamW")),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("Adam", {"eps": 0.1, "betas": (0.5, 0.8)}),
    ("AdamW", {"amsgrad": True, "betas": (0.9, 0.1)}),
]


@pytest.mark.parametrize(("name", "given"), FURTHER)
@pytest.mark.parametrize("how", ["groups", "no gradient", "closure", "hooks"])
def test_they_equal_torchs_in_any_use(name: str, given: dict[str, Any], how: str) -> None:
    """Also where the kernel may not be called directly."""
    ends: list[list[Tensor]] = []
    calls: list[int] = []
    for library in (torch.optim, optimizers):
        torch.manual_seed(0)
        p, q = torch.randn(2, 5).unbind()
        p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
        both = [{"params": [p]}, {"params": [q], "lr": 0.01}] if how == "groups" else [p, q]
        optimizer = getattr(library, name)(both, lr=0.1, fused=True, **given)
        seen: list[int] = []
        calls.append(0)
        if how == "hooks":
            optimizer.register_step_pre_hook(lambda *_: calls.append(calls.pop() + 1))

        def closure(p: Tensor = p, q: Tensor = q, seen: list[int] = seen) -> Tensor:
            p.grad, q.grad = p.detach() ** 2, q.detach() ** 3
            if how == "no gradient" and seen:
                q.grad = None
            seen.append(1)
            return p.detach().sum()

        for _ in range(4):
            if how == "closure":
                want = float(p.detach().sum())
                assert float(optimizer.step(closure)) == want
            else:
                closure()
                optimizer.step()
        optimizer.zero_grad()
        assert p.grad is q.grad is None
        ends.append([p.detach(), q.detach()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert calls == [4 * (how == "hooks")] * 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_copy_skips_the_updates_that_its_own_verdict_refuses(name: str) -> None:
    p, found = torch.ones(3, requires_grad=True), torch.zeros(())
    optimizer = getattr(optimizers, name)([p], lr=0.1, fused=True)
    optimizer.found_inf = found
    copied, q, own = copy.deepcopy((optimizer, p, found))
    own.fill_(1.0)
    for one, parameter, moved in ((copied, q, False), (optimizer, p, True)):
        parameter.grad = torch.ones(3)
        one.step()
        assert bool((parameter < 1).all()) == moved


@pytest.mark.gpu
def test_a_copied_optimizer_does_not_warn_outside_a_graph() -> None:
    p = torch.zeros(1, device="cuda", requires_grad=True)
    optimizer = copy.deepcopy(optimizers.Adam([p], lr=0.1, fused=True, capturable=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


CHOICES: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": ({}, torch.optim.SGD, {}),
    "decay": ({"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    "nesterov": (
        {"momentum": 0.8, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": (
        {"optimizer": "adam", "weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9},
        torch.optim.Adam,
        {"weight_decay": 0.1, "betas": (0.5, 0.9)},
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        torch.optim.AdamW,
        {"weight_decay": 0.1},
    ),
}
"""Options, and torch's optimiser with its arguments."""


def chosen(given: dict[str, Any], p: Tensor, lr: float = 0.1) -> torch.optim.Optimizer:
    options = TrainingOptions(**given)
    fill(options, {}, None)
    return make_optimizer([p], torch.tensor(lr), options)


@pytest.mark.parametrize("name", CHOICES)
def test_the_optimizer_that_options_name_is_torchs(name: str) -> None:
    given, kind, arguments = CHOICES[name]
    torch.manual_seed(0)
    start = torch.randn(3, 4)
    ends: list[list[Tensor]] = []
    for make in (
        lambda p: chosen(given, p),
        lambda p: kind([p], lr=torch.tensor(0.1), fused=True, **arguments),  # type: ignore[call-arg]
    ):
        p = start.clone().requires_grad_()
        optimizer = make(p)  # type: ignore[no-untyped-call]
        for _ in range(4):
            p.grad = p.detach() ** 2
            optimizer.step()
        ends.append([p.detach(), *(v for v in optimizer.state[p].values() if v is not None)])
    assert len(ends[0]) == len(ends[1])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("name", CHOICES)
def test_a_step_with_found_inf_changes_nothing(name: str) -> None:
    p = torch.randn(5, requires_grad=True)
    optimizer = chosen(CHOICES[name][0], p)
    optimizer.found_inf = found = torch.zeros(())  # type: ignore[attr-defined]
    p.grad = torch.ones(5)
    optimizer.step()
    before = [t.detach().clone() for t in (p, *optimizer.state[p].values())]
    found.fill_(1.0)
    p.grad = torch.full((5,), torch.nan)
    optimizer.step()
    after = [p.detach(), *optimizer.state[p].values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("lr", [1e-3, 0.5, 3.0])
def test_no_update_is_larger_than_its_bound(name: str, lr: float) -> None:
    given = {**CHOICES[name][0], "weight_decay": 0.0}
    p = torch.zeros(6, requires_grad=True)
    optimizer, rng = chosen(given, p, lr), torch.Generator().manual_seed(0)
    largest = torch.zeros(())
    for k in range(300):
        p.grad = torch.randn(6, generator=rng) * 10.0 ** (k % 5)
        largest = torch.maximum(largest, p.grad.norm())
        before = p.detach().clone()
        optimizer.step()
        bound = largest_update(optimizer, torch.tensor(lr), largest)
        assert (p.detach() - before).norm() <= bound * 1.001


def test_the_bound_of_adam_holds_for_gradients_that_grow() -> None:
    """The largest ratio of the averages is that of gradients that grow by β₂ / β₁ in each step."""
    beta1, beta2, lr = 0.9, 0.999, 0.5
    p = torch.zeros(6, requires_grad=True)
    optimizer = chosen({"optimizer": "adam", "beta1": beta1, "beta2": beta2}, p, lr)
    growth = sum((beta1**2 / beta2) ** k for k in range(1000)) / (1 - beta2)  # Cauchy–Schwarz
    for k in range(-60, 1):
        p.grad = torch.full((6,), 1e-2 * (beta2 / beta1) ** k)
        before = p.detach().clone()
        optimizer.step()
        moved, norm = (p.detach() - before).norm(), p.grad.norm()
        bound = largest_update(optimizer, torch.tensor(lr), norm)
        torch.testing.assert_close(bound, norm + lr * (6 * growth) ** 0.5)
        assert moved <= bound
    assert moved > 1.5 * lr * 6**0.5  # a bound of α for each weight would be too small


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_of_one_kind_is_called(when: str) -> None:
    p = torch.ones(2, requires_grad=True)
    optimizer, calls = optimizers.SGD([p], lr=0.1), []
    getattr(optimizer, f"register_step_{when}_hook")(lambda *_: calls.append(when))
    optimizer.step()
    assert calls == [when]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_hooks_on_steps_are_called(name: str) -> None:
    p = torch.ones(2, requires_grad=True)
    optimizer, calls = getattr(optimizers, name)([p], lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    p.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert calls == ["before", "after"]
    assert bool((p < 1).all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_learner_imports_no_compiler(device: str) -> None:
    command = [sys.executable, "-c", LEARN.format(device=device)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
