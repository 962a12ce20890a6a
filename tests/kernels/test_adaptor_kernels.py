"""The kernels of the outer step against plain torch: adaptor and cross-entropies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba.adaptors.adaptor import Adaptor
from dualcba.kernels import adaptor as fused
from dualcba.losses import Batch, CrossEntropy
from dualcba.tasks.class_sets import ClassSets

Make = Callable[..., Any]

CBA = {"agnostic": False, "continual": True}
CASES: list[tuple[int, int, int, dict[str, Any]]] = [  # rows, classes, tasks, the adaptor
    (64, 100, 2, {}),
    (64, 100, 2, {"divide": True}),
    (64, 100, 1, {}),  # the first task: all masks zero
    (32, 10, 3, {"specific": "none", "divide": True}),
    (20, 10, 2, {"agnostic": False, "width": 32}),
    (64, 200, 4, {}),
    (33, 100, 1, CBA),
    (7, 3, 2, {"width": 20, "divide": True}),
    (64, 100, 2, {"strength": True}),
    (33, 100, 1, {**CBA, "strength": True}),
    (32, 10, 3, {"prior": True}),
    (32, 10, 3, {"counts": True, "strength": True}),
]
ENTROPIES = [(64, 100, False), (7, 3, True), (33, 200, True)]


@contextmanager
def plain() -> Iterator[None]:
    """Disable the kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "applies", lambda *_: False)
        yield


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Compare, relative to the largest entry."""
    assert got.shape == want.shape
    far = float((got - want).detach().abs().max())
    assert far <= tolerance * max(float(want.detach().abs().max()), 1e-6), far


def adaptor(C: int, tasks: int, options: dict[str, Any]) -> Adaptor:
    """Return an adaptor with non-zero biases; a third of the classes is unseen, one unannounced."""
    sets, each = ClassSets(C), max(1, C // (tasks + 1))
    for task in range(tasks):
        sets.new_task(range(task * each, (task + 1) * each))
    sets.appear(torch.tensor([C - 1]))
    made = Adaptor(sets, generator=torch.Generator().manual_seed(0), **options)
    rng = torch.Generator().manual_seed(1)
    for name, p in made.named_parameters():
        if name.endswith("bias"):
            p.data.normal_(std=0.1, generator=rng)
        if name.endswith("strength"):
            p.data.fill_(0.7)
        if name.endswith("counts"):
            p.data.normal_(std=0.1, generator=rng)
    for b in made.buffers():
        b.copy_(torch.arange(1.0, 1 + b.numel()).view_as(b))
    return made


def compare(case: tuple[int, int, int, dict[str, Any]], device: str) -> None:
    n, C, tasks, options = case
    made = adaptor(C, tasks, options).to(device)
    made.sets.to(device)
    rng = torch.Generator().manual_seed(2)
    z = (3 * torch.randn(n, C, generator=rng)).to(device)
    V = torch.randn(n, C, generator=rng).to(device)
    phi = list(made.parameters())
    r = made(z)
    grads = torch.autograd.grad(r, phi, V)
    again = torch.autograd.grad(made(z), phi, V)
    with plain():
        want = made(z)
        close(r, want, 1e-5)
        for g, w in zip(grads, torch.autograd.grad(want, phi, V), strict=True):
            close(g, w, 1e-4)
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
    with torch.no_grad():
        assert torch.equal(made(z), r)


def compare_entropy(case: tuple[int, int, bool], device: str) -> None:
    n, C, weighted = case
    rng = torch.Generator().manual_seed(0)
    z, s = (3 * torch.randn(2, n, C, generator=rng)).to(device)
    y = torch.randint(C, (n,), generator=rng).to(device)
    each = torch.rand(n, generator=rng).to(device) if weighted else None
    term = CrossEntropy(Batch(z, y, z, z), weight=0.7, each=each)
    got = term.gradient(z), term.curvature(z, s)
    with plain():
        for a, b in zip(got, (term.gradient(z), term.curvature(z, s)), strict=True):
            close(a, b, 1e-5)


def frozen(device: str) -> None:
    """A frozen ν has no gradient; ω still has."""
    made = adaptor(10, 2, {}).to(device)
    made.sets.to(device)
    assert made.agnostic is not None
    made.agnostic.requires_grad_(False)
    r = made(torch.zeros(4, 10, device=device))
    r.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in made.agnostic.parameters())
    assert made.specific is not None
    assert all(p.grad is not None for p in made.specific.parameters())


def everything(device: str) -> None:
    for case in CASES:
        compare(case, device)
    for entropy in ENTROPIES:
        compare_entropy(entropy, device)
    frozen(device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_adaptors_kernels(case: tuple[int, int, int, dict[str, Any]], exact: None) -> None:
    z = torch.zeros(case[:2], device="cuda")
    assert fused.applies(z)
    compare(case, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("case", ENTROPIES)
def test_the_kernels_of_cross_entropies(case: tuple[int, int, bool]) -> None:
    compare_entropy(case, "cuda")


@pytest.mark.gpu
def test_a_part_that_is_frozen() -> None:
    frozen("cuda")


@pytest.mark.gpu
def test_a_learner_trains_equally_with_and_without_kernels(make_learner: Make, teach: Any) -> None:
    losses = []
    for without in (False, True):
        learner = make_learner("er-dual-cba", device="cuda", precision="fp32", outer_every=2)
        with plain() if without else torch.enable_grad():
            teach(learner, tasks=2, steps=6)
        learner.parts.engine.finish()  # it works on a stream of its own
        losses.append(learner.parts.loss_monitor.values[: learner.step].cpu())
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)


def test_other_devices_use_plain_torch() -> None:
    assert not fused.applies(torch.zeros(4, 10))
    assert not fused.applies(torch.zeros(4, 10, device="meta"))


def test_the_kernels_in_tritons_interpreter(interpreted: Callable[[str], None]) -> None:
    """Without a GPU, Triton can interpret the kernels with NumPy."""
    code = (
        "import dualcba.kernels.adaptor as f, tests.kernels.test_adaptor_kernels as t\n"
        "f.applies = lambda *_: True\n"
        "t.everything('cpu')\n"
    )
    interpreted(code)
