"""DER++ against NumPy, and the stored logits."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies
from numpy.typing import NDArray

from dualcba import Learner
from dualcba.adaptors.adaptor import ADAPTORS
from dualcba.adaptors.hypergradient import hypergradient
from dualcba.data import Transform
from dualcba.losses import Batch, identity, total
from dualcba.methods.derpp import DERpp
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.rar import RAR
from dualcba.tasks.class_sets import ClassSets

C, D = 5, 7
Floats = NDArray[np.float64]


def batch(rng: np.random.Generator, n: int, start: int = 0) -> Batch:
    """Random logits, labels, features and stored logits in float64."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    columns = {"logits": normal(n, C), "raw_logits": normal(n, C)}
    y = torch.from_numpy(rng.integers(0, C, n))
    return Batch(normal(n, 3), y, normal(n, C), normal(n, D), columns, slice(start, start + n))


def batches(seed: int = 0) -> tuple[Batch, list[Batch], Batch]:
    rng = np.random.default_rng(seed)
    return batch(rng, 6), [batch(rng, 4, 6), batch(rng, 4, 10)], batch(rng, 4)


def ce(z: Floats, y: NDArray[np.int64]) -> float:
    return float(cross_entropies(z, y).mean())


def arrays(b: Batch) -> tuple[Floats, NDArray[np.int64]]:
    return b.z.numpy(), b.y.numpy()


def test_loss_is_the_sum_of_three_terms() -> None:
    new, mem, _ = batches()
    want = ce(*arrays(new))
    want += 0.2 * np.mean((mem[0].z.numpy() - mem[0].columns["logits"].numpy()) ** 2)
    want += 0.5 * ce(*arrays(mem[1]))
    assert DERpp().loss(new, mem, identity).item() == pytest.approx(want, abs=1e-6)


def test_every_term_is_adapted() -> None:
    new, mem, _ = batches(1)
    r = np.random.default_rng(9).normal(size=(14, C))
    loss = DERpp(alpha=0.7, beta=0.3).loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
    want = ce(new.z.numpy() + r[:6], new.y.numpy())
    want += 0.7 * np.mean((mem[0].z.numpy() + r[6:10] - mem[0].columns["logits"].numpy()) ** 2)
    want += 0.3 * ce(mem[1].z.numpy() + r[10:], mem[1].y.numpy())
    assert loss.item() == pytest.approx(want, abs=1e-6)


def test_raw_targets_are_compared_with_raw_logits() -> None:
    new, mem, _ = batches(1)
    r = np.random.default_rng(9).normal(size=(14, C))
    method = DERpp(alpha=0.7, beta=0.3)
    method.raw_targets = True
    loss = method.loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
    want = ce(new.z.numpy() + r[:6], new.y.numpy())
    want += 0.7 * np.mean((mem[0].z.numpy() - mem[0].columns["raw_logits"].numpy()) ** 2)
    want += 0.3 * ce(mem[1].z.numpy() + r[10:], mem[1].y.numpy())
    assert loss.item() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("make", [DERpp, RAR, lambda: FixMatch(DERpp())])
@pytest.mark.parametrize("targets", ["adapted", "raw"])
def test_the_learner_says_which_targets_are_rehearsed(
    make: Any, targets: str, make_learner: Any, teach: Any
) -> None:
    learner = teach(make_learner(make(), adaptor="dual-cba", targets=targets))
    method = getattr(learner.method, "method", learner.method)
    assert method.raw_targets == (targets == "raw")
    new, mem, _ = batches()
    term = method.terms(new, mem)[1]
    assert term.adapted == (targets == "adapted")
    assert term.target is mem[0].columns["logits" if targets == "adapted" else "raw_logits"]


def test_outer_loss_compares_with_the_raw_logits() -> None:
    _, _, outer = batches(2)
    want = ce(*arrays(outer))
    want += np.mean((outer.z.numpy() - outer.columns["raw_logits"].numpy()) ** 2)
    assert total(DERpp().outer_terms(outer), identity).item() == pytest.approx(want, abs=1e-6)


def test_only_new_samples_while_the_memory_is_empty() -> None:
    new, _, _ = batches()
    assert DERpp().loss(new, [], identity).item() == pytest.approx(ce(*arrays(new)), abs=1e-6)


@pytest.mark.parametrize("kind", ["cba", "dual-cba"])
@pytest.mark.parametrize("with_memory", [True, False])
@pytest.mark.parametrize("raw", [False, True])
def test_closed_form_is_the_autograd_one(kind: str, with_memory: bool, raw: bool) -> None:
    new, mem, outer = batches(3)
    sets = ClassSets(C)
    sets.new_task([0, 1, 2])
    sets.new_task([3, 4])
    adaptor = ADAPTORS[kind](sets, torch.Generator().manual_seed(0), width=8).double()
    head = torch.nn.Linear(D, C).double()
    method = DERpp()
    method.raw_targets = raw
    closed, unrolled = (
        hypergradient(
            adaptor, method, new, mem if with_memory else [], outer, head, 0.3, closed_form=form
        )
        for form in (True, False)
    )
    assert DERpp().closed_form
    for a, b in zip(closed, unrolled, strict=True):
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-14)
        assert a.abs().max() > 1e-8


@pytest.mark.parametrize("method", ["derpp", "derpp-cba", "derpp-dual-cba"])
def test_stores_adapted_and_raw_logits_of_the_step(
    method: str, make_learner: Callable[..., Learner], make_batches: Callable[..., Any]
) -> None:
    every = {"outer_every": 1} if method.endswith("cba") else {}
    learner = make_learner(method, buffer=100, transform=Transform([0.5], [0.25]), **every)
    at = 0
    for k, task in enumerate(make_batches(3, 3)[:2]):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in task:
            before = deepcopy(learner.network)
            learner.observe(x, y)
            with torch.no_grad():
                raw, _ = before(learner.parts.context.transform(x))
                r = torch.zeros_like(raw) if learner.adaptor is None else learner.adaptor(raw)
            rows = torch.arange(at, at + len(x))  # the memory is not full yet
            stored_x, stored_y, columns = learner.memory.read(rows)
            assert torch.equal(stored_x, x)
            assert torch.equal(stored_y, y)
            assert torch.allclose(columns["raw_logits"], raw, atol=1e-6)
            assert torch.allclose(columns["logits"], raw + r, atol=1e-6)
            at += len(x)
    moved = (columns["logits"] - columns["raw_logits"]).abs().max()
    assert (moved > 1e-3) == (method != "derpp")


def test_draws_twice_independently(make_learner: Callable[..., Learner], teach: Any) -> None:
    learner = make_learner("derpp")
    drawn: list[list[int]] = []
    draw = learner.memory.draw

    def recorded(n: int, rng: np.random.Generator) -> Any:
        rows = draw(n, rng)
        drawn.append(sorted(rows.tolist()))
        return rows

    learner.memory.draw = recorded  # type: ignore[method-assign]
    teach(learner, tasks=2, steps=5)
    assert len(drawn) == 2 * 9  # none at the first step: the memory is empty
    assert drawn[-2] != drawn[-1]


def test_options_reach_the_method(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner("derpp", method_options={"alpha": 0.9})
    assert isinstance(learner.method, DERpp)
    assert (learner.method.alpha, learner.method.beta) == (0.9, 0.5)
