"""The learner: what a step does and in what order, what answering leaves alone, what it refuses."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dualcba import Dataset, Learner, Method, Transform
from dualcba.data import disjoint
from dualcba.evaluation import Evaluator
from dualcba.losses import Adapt, Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods.er import ER

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]

METHODS = ["er", "er-cba", "er-dual-cba"]


class TwoDraws(Method):
    """As DER++: two draws and stored logits."""

    draws = 2
    columns = ("logits", "raw_logits")

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        terms: list[Term] = [CrossEntropy(new)]
        if mem:
            terms.append(MeanSquaredError(mem[0], mem[0].columns["logits"], weight=0.2))
            terms.append(CrossEntropy(mem[1], weight=0.5))
        return terms

    def outer_terms(self, outer: Batch) -> list[Term]:
        return [CrossEntropy(outer), MeanSquaredError(outer, outer.columns["raw_logits"])]


class Rereads(ER):
    """Asks for the task's samples again, and counts them; has noise and a state of its own."""

    rereads_task = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moved", torch.zeros((), dtype=torch.float64))
        self.ended: list[tuple[Tensor, Tensor]] = []
        self.begun = 0

    def noise(self, rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.random(2)

    def after_step(self, noise: Tensor | None) -> None:
        assert noise is not None
        self.moved += noise.sum()

    def begin_task(self) -> None:
        self.begun += 1

    def end_task(self, x: Tensor, y: Tensor) -> None:
        self.ended.append((x, y))


class Spy:
    """Records the batches of each step and what the loss was taken of."""

    def __init__(self, learner: Learner) -> None:
        self.steps: list[tuple[list[Batch], list[Tensor]]] = []
        self.loss = learner.method.loss
        learner.method.loss = self  # type: ignore[assignment,method-assign]

    def __call__(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        batches = [new, *mem]
        self.steps.append((batches, [adapt(b).detach().clone() for b in batches]))
        return self.loss(new, mem, adapt)


def parameters(module: nn.Module | None) -> dict[str, Tensor]:
    return {} if module is None else {n: p.detach().clone() for n, p in module.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


# ---------------------------------------------------------------- θ's step


def expected_gradients(
    network: nn.Module, batches: list[Batch], correction: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """θ's gradients of CE(z + r), written out; `correction` decides whether r is a constant."""
    network.zero_grad()
    network.train()
    loss = torch.zeros(())
    for b in batches:
        z = network(b.x)
        loss = loss + F.cross_entropy(z + correction(z), b.y)
    loss.backward()
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_no_gradient_flows_through_the_adaptors_input(
    method: str, make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner(method, outer_every=1))
    for p in learner.adaptor.parameters():  # type: ignore[union-attr]
        p.data.mul_(3)  # a correction that matters
    before = copy.deepcopy(learner.network.module)
    spy = Spy(learner)
    x, y = make_batches(3)[1][0]
    learner.observe(x, y)
    got = {n: p.grad.clone() for n, p in learner.network.module.named_parameters()}  # type: ignore[union-attr]
    adaptor = learner.adaptor
    assert adaptor is not None

    def attached(z: Tensor) -> Tensor:
        """The same correction, its input left attached."""
        p = z.softmax(1)
        return adaptor._from_posterior(p)

    batches = spy.steps[-1][0]
    constant = expected_gradients(before, batches, lambda z: attached(z.detach()).detach())
    through = expected_gradients(before, batches, attached)
    for name, grad in got.items():
        torch.testing.assert_close(grad, constant[name], rtol=1e-4, atol=1e-6)
    largest = max(float((got[n] - through[n]).abs().max()) for n in got)
    assert largest > 1e-3  # so the comparison above can tell the two apart


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_a_precomputed_constant_gives_the_same_step(
    method: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    """Bit for bit: the same step with r put in as a plain tensor."""
    a, b = (teach(make_learner(method, outer_every=3), steps=4) for _ in range(2))
    x, y = make_batches(3)[1][0]
    given: list[Tensor] = []
    forward = a.adaptor.forward  # type: ignore[union-attr]
    monkeypatch.setattr(a.adaptor, "forward", lambda z: given.append(forward(z)) or given[-1])
    a.observe(x, y)  # the fifth step of the task, so no outer step
    assert len(given) == 1
    monkeypatch.setattr(b.adaptor, "forward", lambda z: given[0].clone())
    b.observe(x, y)
    assert same(parameters(a.network), parameters(b.network))


def test_er_is_a_plain_sgd_step(make_learner: Make, teach: Teach, make_batches: Any) -> None:
    learner = teach(make_learner("er", lr=0.1))
    before = copy.deepcopy(learner.network.module)
    spy = Spy(learner)
    learner.observe(*make_batches(3)[1][0])
    (new, mem), _ = spy.steps[-1]
    assert (len(new.y), len(mem.y)) == (8, 8)
    grads = expected_gradients(before, [new, mem], torch.zeros_like)
    after = dict(learner.network.module.named_parameters())
    for name, p in before.named_parameters():
        torch.testing.assert_close(after[name], p - 0.1 * grads[name], rtol=1e-5, atol=1e-6)


def test_memory_draws_are_augmented_anew(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er", buffer=4))
    raw = learner.transform(learner.memory.x[:4]).clone()
    spy = Spy(learner)
    views = []
    for x, y in make_batches(3)[1][:3]:
        kept = learner.memory.x.clone()
        learner.observe(x, y)
        views.append(spy.steps[-1][0][1].x)
        learner.memory.x.copy_(kept)
    assert all(v.shape == raw.shape for v in views)
    assert not torch.equal(views[0].sort(0)[0], views[1].sort(0)[0])
    assert learner.memory.x.dtype == torch.uint8


def test_the_memory_is_filled_after_the_step(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er", transform=Transform([0.0], [1.0]), buffer=20)
    spy = Spy(learner)
    learner.new_task([0, 1])
    stream = make_batches(3)[0]
    for x, y in stream[:2]:
        learner.observe(x, y)
    assert [len(batches) for batches, _ in spy.steps] == [1, 2]  # at first there is nothing to draw
    x0, y0 = stream[0]
    drawn = spy.steps[1][0][1]
    assert sorted(drawn.y.tolist()) == sorted(y0.tolist())
    assert torch.equal(learner.memory.x[:8], x0)
    assert learner.memory.y[:16].tolist() == [*y0.tolist(), *stream[1][1].tolist()]


def test_draws_take_at_most_what_there_is(make_learner: Make, teach: Teach) -> None:
    learner = make_learner("er", buffer=5, batch_size=8)
    spy = Spy(learner)
    teach(learner)
    assert {len(b.y) for batches, _ in spy.steps for b in batches[1:]} == {5}


@pytest.mark.parametrize(("forward", "tracked"), [("split", 2), ("concat", 1)])
def test_new_and_memory_batches_pass_apart_or_together(
    forward: str, tracked: int, make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er-dual-cba", forward=forward, outer_every=1))
    norm = learner.norms[0]
    assert norm.num_batches_tracked is not None
    before = int(norm.num_batches_tracked)
    spy = Spy(learner)
    learner.observe(*make_batches(3)[1][0])  # the outer forward does not count
    assert int(norm.num_batches_tracked) - before == tracked
    assert [b.rows for b in spy.steps[0][0]] == [slice(0, 8), slice(8, 16)]


def test_without_batch_statistics_together_is_as_apart(
    make_learner: Make, make_net: Any, teach: Teach
) -> None:
    states = []
    for forward in ("split", "concat"):
        learner = make_learner("er-dual-cba", make_net(norm=False), forward=forward)
        states.append(parameters(teach(learner).network))
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-4, atol=1e-6)


def test_stored_logits_are_those_trained_on(make_learner: Make, teach: Teach) -> None:
    learner = make_learner(TwoDraws(), adaptor="dual-cba", buffer=1000)
    spy = Spy(learner)
    teach(learner, tasks=2, steps=3)
    raw = torch.cat([batches[0].z.detach() for batches, _ in spy.steps])
    adapted = torch.cat([logits[0] for _, logits in spy.steps])
    assert torch.equal(learner.memory.column("raw_logits")[: len(raw)], raw)
    assert torch.equal(learner.memory.column("logits")[: len(raw)], adapted)
    assert torch.equal(raw[:24], adapted[:24])  # no correction in the first task
    assert not torch.allclose(raw[24:], adapted[24:])


def test_two_draws_are_independent(make_learner: Make, teach: Teach) -> None:
    learner = make_learner(TwoDraws(), adaptor="cba", batch_size=4, buffer=20)
    spy = Spy(learner)
    teach(learner)
    pairs = [(b[1].x, b[2].x) for b, _ in spy.steps if len(b) == 3]
    assert pairs
    assert not any(torch.equal(one, two) for one, two in pairs)


# ---------------------------------------------------------------- the outer step


def outer_draws(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, Batch]]:
    """The memory draw of the inner loss and that of the outer one, of each outer step to come."""
    pairs: list[tuple[Batch, Batch]] = []
    step = learner.outer.step

    def spy(new: Batch, mem: Sequence[Batch], draw: Batch) -> None:
        pairs.append((mem[0], draw))
        step(new, mem, draw)

    monkeypatch.setattr(learner.outer, "step", spy)
    return pairs


def test_the_outer_draw_is_not_that_of_the_inner_loss(
    make_learner: Make, teach: Teach, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Transform([0.0], [1.0])
    learner = make_learner(outer_every=1, batch_size=4, transform=plain)
    pairs = outer_draws(learner, monkeypatch)
    teach(learner)
    assert pairs
    assert not any(torch.equal(inner.x, outer.x) for inner, outer in pairs)


def test_the_outer_draw_is_augmented(
    make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = teach(make_learner(outer_every=1))
    stored = learner.transform(learner.memory.x).flatten(1).tolist()
    pairs = outer_draws(learner, monkeypatch)
    learner.observe(*make_batches(3)[1][0])
    assert not all(row in stored for row in pairs[0][1].x.flatten(1).tolist())


def outer_steps(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps, from 0, at which the adaptor learns."""
    at: list[int] = []
    step = learner.outer.step

    def spy(*args: Any) -> None:
        at.append(learner.step)
        step(*args)

    monkeypatch.setattr(learner.outer, "step", spy)
    return at


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
@pytest.mark.parametrize(
    ("every", "want"), [(1, [4, 5, 6, 7, 8, 9, 10, 11]), (3, [4, 7, 8, 11]), (5, [4, 8])]
)
def test_the_adaptor_learns_every_so_many_steps_from_the_second_task_on(
    method: str, every: int, want: list[int], make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner(method, outer_every=every)
    at = outer_steps(learner, monkeypatch)
    teach(learner, tasks=3, steps=4)
    assert at == want


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_between_outer_steps_the_adaptor_stands_still(
    method: str, make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner(method, outer_every=3), tasks=1)
    learner.new_task([2, 3])
    moved = []
    for x, y in make_batches(3, steps=7)[1]:
        before = parameters(learner.adaptor)
        learner.observe(x, y)
        moved.append(not same(parameters(learner.adaptor), before))
    assert moved == [True, False, False, True, False, False, True]


def test_the_first_task_of_dual_cba_is_plain_er(make_learner: Make, teach: Teach) -> None:
    """r = 0 and no outer step: every bit of θ and of the memory as without an adaptor."""
    dual, plain = make_learner("er-dual-cba"), make_learner("er")
    before = parameters(dual.adaptor)
    spy = Spy(dual)
    teach(dual, tasks=1)
    teach(plain, tasks=1)
    assert same(parameters(dual.network), parameters(plain.network))
    assert torch.equal(dual.memory.x, plain.memory.x)
    assert same(parameters(dual.adaptor), before)
    assert dual.adaptor_optimizer is not None
    assert not dual.adaptor_optimizer.state
    for batches, adapted in spy.steps:
        assert all(torch.equal(b.z, z) for b, z in zip(batches, adapted, strict=True))


def test_a_class_is_corrected_from_the_step_after_it_first_appears(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er-dual-cba"))
    spy = Spy(learner)
    x, y = make_batches(3)[1][0]
    y[0] = 5  # that no task has announced
    for _ in range(2):
        learner.observe(x, y)
    moved = [bool((adapted[0] != batches[0].z)[:, 5].any()) for batches, adapted in spy.steps]
    assert moved == [False, True]


def test_a_second_task_after_an_empty_one_has_nothing_to_learn_the_adaptor_from(
    make_learner: Make, make_batches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner("er-dual-cba", outer_every=1)
    at = outer_steps(learner, monkeypatch)
    learner.new_task([0, 1])
    learner.new_task([2, 3])
    for x, y in make_batches(3)[1][:3]:
        learner.observe(x, y)
    assert at == [1, 2]


def test_plain_cba_is_applied_in_the_first_task_but_does_not_learn_there(
    make_learner: Make, teach: Teach
) -> None:
    cba, plain = make_learner("er-cba"), make_learner("er")
    before = parameters(cba.adaptor)
    spy = Spy(cba)
    teach(cba, tasks=1)
    teach(plain, tasks=1)
    assert not same(parameters(cba.network), parameters(plain.network))
    assert same(parameters(cba.adaptor), before)
    for batches, adapted in spy.steps:
        assert not any(torch.allclose(b.z, z) for b, z in zip(batches, adapted, strict=True))


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_phi_moves_first_then_theta_with_the_new_phi_on_the_same_logits(
    method: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    learner = teach(make_learner(method, outer_every=1, adaptor_lr=0.1))
    events: list[str] = []
    seen: dict[str, Any] = {}
    outer, theta = learner.outer.step, learner.optimizer.step
    phi = parameters(learner.adaptor)
    weights = parameters(learner.network)
    spy = Spy(learner)

    def watch_outer(new: Batch, mem: Sequence[Batch], draw: Any) -> None:
        events.append("outer")
        assert same(parameters(learner.network), weights)
        seen["z"] = [b.z for b in (new, *mem)]
        outer(new, mem, draw)

    def watch_theta(*args: Any) -> None:
        events.append("theta")
        theta(*args)

    monkeypatch.setattr(learner.outer, "step", watch_outer)
    monkeypatch.setattr(learner.optimizer, "step", watch_theta)
    learner.observe(*make_batches(3)[1][0])
    assert events == ["outer", "theta"]
    batches, adapted = spy.steps[-1]
    assert all(b.z is z for b, z in zip(batches, seen["z"], strict=True))
    assert learner.adaptor is not None
    Z = torch.cat([b.z.detach() for b in batches])
    now = torch.cat(adapted)
    torch.testing.assert_close(now, learner.adaptor.adapt(Z, learner.adaptor(Z)).detach())
    for name, p in learner.adaptor.named_parameters():
        p.data.copy_(phi[name])
    assert not torch.allclose(now, learner.adaptor.adapt(Z, learner.adaptor(Z)), atol=1e-3)


def test_the_outer_step_is_adam_on_the_hypergradient(
    make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    """A fresh draw, batch statistics, no running statistics, no gradient of the network."""
    learner = teach(make_learner("er-dual-cba", outer_every=1, adaptor_lr=0.02), tasks=1)
    learner.new_task([2, 3])
    network = copy.deepcopy(learner.network.module)
    phi = parameters(learner.adaptor)
    record: dict[str, Any] = {}
    import dualcba.adaptors.outer_step as module

    exact = module.hypergradient

    def spy(*args: Any) -> Any:
        record["args"], record["grads"] = args, exact(*args)
        return record["grads"]

    monkeypatch.setattr(module, "hypergradient", spy)
    learner.observe(*make_batches(3)[1][0])
    _, _, new, mem, outer, _, lr = record["args"]
    assert float(lr) == pytest.approx(0.05)
    assert len(outer.y) == 8
    assert not outer.z.requires_grad
    assert not any(torch.equal(outer.x, b.x) for b in (new, *mem))
    network.train()
    torch.testing.assert_close(outer.z, network(outer.x).detach())
    for (name, p), g in zip(
        learner.adaptor.named_parameters(),
        record["grads"],
        strict=True,  # type: ignore[union-attr]
    ):
        step = 0.02 * g / (g.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(p, phi[name] - step, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba", "derpp-dual-cba"])
@pytest.mark.parametrize("levels", ["joint", "buffer"])
def test_a_single_level_is_adam_on_the_loss_of_the_adapted_network(
    levels: str, method: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    """Joint: the very loss that θ then moves by, at φ before. Buffer: that of a fresh draw."""
    learner = teach(
        make_learner(method, levels=levels, outer_every=1, adaptor_lr=0.02), tasks=1, steps=2
    )
    learner.new_task([2, 3])
    learner.forwards.samplewise = False  # so that each batch has a forward of its own
    network, adaptor = copy.deepcopy(learner.network.module), copy.deepcopy(learner.adaptor)
    assert adaptor is not None
    adaptor._shared = (learner.sets,)
    sets_then = copy.deepcopy(learner.sets)
    read: list[Any] = []
    take = learner.memory.read
    monkeypatch.setattr(learner.memory, "read", lambda rows: read.append(take(rows)) or read[-1])
    views: list[Tensor] = []
    learner.network.module[0].register_forward_pre_hook(lambda _, x: views.append(x[0]))
    x, y = make_batches(3)[1][0]
    learner.observe(x, y)
    draws = learner.method.draws
    assert len(views) == 1 + draws + (levels == "buffer")
    if levels == "buffer":  # the outer draw comes first
        views, read = views[1:] + views[:1], read[1:] + read[:1]
    adaptor._shared = (sets_then,)
    network.train()
    z = [network(v).detach() for v in views]
    adapted = [adaptor.adapt(v, adaptor(v)) for v in z]
    mem = read[:draws]
    if levels == "buffer":
        (_, labels, columns) = read[-1]
        loss = F.cross_entropy(adapted[-1], labels)
        if draws == 2:
            loss = loss + F.mse_loss(adapted[-1], columns["raw_logits"])
    elif draws == 2:
        loss = F.cross_entropy(adapted[0], y) + 0.5 * F.cross_entropy(adapted[2], mem[1][1])
        loss = loss + 0.2 * F.mse_loss(adapted[1], mem[0][2]["logits"])
    else:
        loss = F.cross_entropy(adapted[0], y) + F.cross_entropy(adapted[1], mem[0][1])
    grads = torch.autograd.grad(loss, list(adaptor.parameters()))
    now = learner.adaptor.parameters()  # type: ignore[union-attr]
    for p, old, g in zip(now, adaptor.parameters(), grads, strict=True):
        step = 0.02 * g / (g.abs() + 1e-8)  # Adam's first step
        firm = g.abs() > 1e-6  # where it is not all rounding
        torch.testing.assert_close(p[firm], (old - step)[firm], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("levels", ["joint", "buffer"])
def test_a_single_level_keeps_the_steps_of_the_outer_loop(
    levels: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner("er-dual-cba", outer_every=3, levels=levels)
    at = outer_steps(learner, monkeypatch)
    teach(learner, tasks=3, steps=4)
    assert at == [4, 7, 8, 11]


def test_a_step_has_a_forward_each_for_the_inner_and_outer_loss_and_one_backward(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er-dual-cba", outer_every=1))
    calls: list[str] = []
    first = learner.network.module[0]
    first.register_forward_hook(lambda *_: calls.append("forward"))
    first.weight.register_hook(lambda g: calls.append("backward"))
    learner.observe(*make_batches(3)[1][0])
    assert calls == ["forward"] * 2 + ["backward"]  # new batch and memory draw pass together


@pytest.mark.parametrize("specific", ["single", "individual"])
def test_a_new_task_resets_omega_and_its_adam_state_and_keeps_nu(
    specific: str, make_learner: Make, teach: Teach
) -> None:
    options = {"specific": specific, "width": 16}
    learner = teach(make_learner("er-dual-cba", adaptor_options=options))
    adam = learner.adaptor_optimizer
    assert adam is not None
    assert learner.adaptor is not None

    def moments() -> dict[str, dict[str, Tensor]]:
        named = learner.adaptor.named_parameters()  # type: ignore[union-attr]
        return {n: {k: v.clone() for k, v in adam.state[p].items()} for n, p in named}

    weights, before = parameters(learner.adaptor), moments()
    assert all(m["exp_avg_sq"].any() for m in before.values())
    learner.new_task([4, 5])
    fresh, after = parameters(learner.adaptor), moments()
    for name in weights:
        if name.startswith("specific."):
            assert not torch.equal(fresh[name], weights[name])
            assert not any(v.any() for v in after[name].values())  # step, exp_avg, exp_avg_sq
        else:
            assert torch.equal(fresh[name], weights[name])
            assert same(after[name], before[name])


def test_after_a_reset_adam_is_as_new(make_learner: Make, teach: Teach, make_batches: Any) -> None:
    """Zeroed moments and count act as if the optimiser had been made anew for ω."""
    learner = teach(make_learner("er-dual-cba", outer_every=1, adaptor_lr=0.02))
    learner.new_task([4, 5])
    before = parameters(learner.adaptor)
    learner.observe(*make_batches(3)[2][0])
    for name, p in learner.adaptor.named_parameters():  # type: ignore[union-attr]
        if name.startswith("specific."):
            moved = (p.detach() - before[name]).abs()
            moved = moved[moved > 0]
            assert float(moved.max()) <= 0.02 * 1.001
            assert float(moved.median()) > 0.019  # Adam's first step has the full length


def test_plain_cba_is_never_reset(make_learner: Make, teach: Teach, differ: Differ) -> None:
    learner = teach(make_learner("er-cba"))
    before = learner.state_dict()
    learner.new_task([4, 5])
    changed = differ(before, learner.state_dict())
    assert not any(name.startswith(("adaptor", "network", "memory")) for name in changed)


@pytest.mark.parametrize(
    "options",
    [
        {"specific": "none"},
        {"agnostic": False},
        {"specific": "individual", "divide": True},
        {"space": "probability"},
        {"space": "probability", "specific": "individual"},
    ],
)
def test_every_kind_of_dual_adaptor_learns(
    options: dict[str, Any], make_learner: Make, teach: Teach
) -> None:
    learner = make_learner("er-dual-cba", adaptor_options={"width": 16, **options})
    teach(learner, tasks=1)
    learner.new_task([2, 3])
    before = parameters(learner.adaptor)
    learner.observe(*_second(learner))
    after = parameters(learner.adaptor)
    assert all(not torch.equal(after[n], p) for n, p in before.items() if n.endswith("weight"))
    teach(learner, tasks=1)
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())


def _second(learner: Learner) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (8, 3, 8, 8), generator=rng, dtype=torch.uint8)
    return x, torch.tensor([2, 3] * 4)


# ---------------------------------------------------------------- static shapes, no waiting


class NoSync(TorchDispatchMode):
    """Fails on operations that make a GPU's host wait, or whose shape depends on data."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
    RANDOM = ("rand", "normal_", "uniform_", "bernoulli", "multinomial", "randperm")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert name not in self.FORBIDDEN, f"{func} waits for the device"
        assert not name.startswith(self.RANDOM), f"{func} draws inside the step"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", [*METHODS, TwoDraws])
@pytest.mark.parametrize("space", ["logit", "probability"])
def test_a_step_never_waits_for_the_device(
    method: Any, space: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    given = {"adaptor": "dual-cba"} if method is TwoDraws else {}
    method = method() if method is TwoDraws else method
    if method != "er":
        given = {"adaptor_options": {"space": space, "width": 8}, **given}
    learner = make_learner(method, **given)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10


def strictly(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fail where a step waits for the device; the keys of the steps, as they come."""
    run, ran = learner.engine.run, []

    def strict(key: Any, fn: Any, *inputs: Tensor) -> None:
        ran.append(key)
        with NoSync():
            run(key, fn, *inputs)

    monkeypatch.setattr(learner.engine, "run", strict)
    return ran


@pytest.mark.parametrize("method", ["er-cba", "derpp-dual-cba"])
@pytest.mark.parametrize("levels", ["joint", "buffer"])
def test_nor_does_one_of_a_single_level(
    levels: str, method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner(method, levels=levels)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10


def test_the_guard_against_waiting_sees_an_item() -> None:
    with pytest.raises(AssertionError, match="waits"), NoSync():
        torch.ones(3).sum().item()


@pytest.mark.parametrize("method", METHODS)
def test_steps_with_equal_keys_have_equal_shapes(
    method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    """Once the memory is full there are two kinds of steps: with and without the outer one."""
    learner = make_learner(method, buffer=16)
    run, keys = learner.engine.run, []

    def spy(key: Any, fn: Any, *inputs: Tensor) -> None:
        keys.append((key, tuple(t.shape for t in inputs)))
        run(key, fn, *inputs)

    monkeypatch.setattr(learner.engine, "run", spy)
    teach(learner, tasks=3)
    assert len({key for key, _ in keys[3:]}) == (1 if method == "er" else 2)
    assert len(set(keys)) == len({key for key, _ in keys})


def test_learning_draws_nothing_from_the_global_generators(
    make_learner: Make, teach: Teach
) -> None:
    learner = make_learner()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    teach(learner)
    learner.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_state_another_seed_another(
    method: str, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    a, b, c = (teach(make_learner(method, seed=s)).state_dict() for s in (4, 4, 5))
    assert differ(a, b) == []
    assert "memory.x" in differ(a, c)
    assert any(name.startswith("network.") for name in differ(a, c))


# ---------------------------------------------------------------- answering


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ibn", [False, True])
def test_predicting_and_evaluating_change_no_byte(
    method: str, ibn: bool, images: Dataset, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(method, ibn=ibn), tasks=3)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=7)
    before = learner.state_dict()
    modes = [m.training for m in learner.network.modules()]
    momenta = [n.momentum for n in learner.norms]
    learner.predict(images.test_x)
    learner.predict_proba(images.test_x[:3])
    for kind in ("start", "anytime", "end", "end", "both"):
        evaluator.evaluate(kind)
    evaluator.accuracy()
    evaluator.result()
    assert differ(before, learner.state_dict()) == []
    assert [m.training for m in learner.network.modules()] == modes
    assert [n.momentum for n in learner.norms] == momenta
    assert all(n.track_running_stats for n in learner.norms)


@pytest.mark.parametrize("method", METHODS)
def test_answering_in_between_does_not_change_what_is_learnt(
    method: str, images: Dataset, make_learner: Make, make_batches: Any, differ: Differ
) -> None:
    talkative, silent = make_learner(method), make_learner(method)
    for k, batches in enumerate(make_batches(3)):
        for learner in (talkative, silent):
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            talkative.observe(x, y)
            talkative.predict(images.test_x[:4])
            silent.observe(x, y)
    assert differ(talkative.state_dict(), silent.state_dict()) == []


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
@pytest.mark.parametrize("ibn", [False, True])
def test_the_adaptor_takes_no_part_in_answers(
    method: str, ibn: bool, images: Dataset, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = teach(make_learner(method, ibn=ibn))
    evaluator = Evaluator(learner, images, disjoint(images, 3))

    def answers() -> tuple[Tensor, Tensor, list[Tensor]]:
        evaluator.evaluate("end")
        counts = [evaluator.counts[n][-1] for n in ("bn", "ibn")]
        return learner.predict(images.test_x), learner.predict_proba(images.test_x), counts

    classes, probabilities, counts = answers()
    assert learner.adaptor is not None
    for p in learner.adaptor.parameters():
        p.data.fill_(torch.nan)
    monkeypatch.setattr(learner.adaptor, "forward", None)
    monkeypatch.setattr(learner.adaptor, "adapt", None)
    learner.answers.forget()  # have IBN estimated anew
    again = answers()
    assert torch.equal(again[0], classes)
    assert torch.equal(again[1], probabilities)
    assert all(torch.equal(a, b) for a, b in zip(again[2], counts, strict=True))


def test_probabilities_are_the_networks_own(
    images: Dataset, make_learner: Make, teach: Any
) -> None:
    learner = teach(make_learner("er", ibn=False))
    x = images.test_x
    p = learner.predict_proba(x)
    network = copy.deepcopy(learner.network.module).eval()
    with torch.no_grad():
        want = network(images.transform()(x)).softmax(1)
    torch.testing.assert_close(p, want)
    assert torch.equal(learner.predict(x), want.argmax(1))
    torch.testing.assert_close(p.sum(1), torch.ones(len(x)))


def test_answers_do_not_depend_on_their_company(
    images: Dataset, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = teach(make_learner())
    together = learner.predict_proba(images.test_x)
    alone = torch.cat([learner.predict_proba(images.test_x[i : i + 1]) for i in range(30)])
    monkeypatch.setattr("dualcba.learner.PREDICT_BATCH", 7)
    torch.testing.assert_close(alone, together)
    torch.testing.assert_close(learner.predict_proba(images.test_x), together)


def test_answers_before_anything_was_learnt(images: Dataset, make_learner: Make) -> None:
    learner = make_learner()
    assert learner.task == -1
    assert learner.predict(images.test_x[:2]).shape == (2,)
    assert learner.predict_proba(images.test_x[:2]).shape == (2, 6)


def test_it_learns(images: Dataset, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba", lr=0.1)
    for k, batches in enumerate(make_batches(3, steps=40)):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    right = learner.predict(images.test_x) == images.test_y
    assert right.float().mean() > 0.6


def test_arrays_lists_and_tensors_alike(
    images: Dataset, make_learner: Make, differ: Differ
) -> None:
    x, y = images.train_x[:8], torch.tensor([0, 1] * 4)
    states = []
    for form in (lambda t: t, lambda t: t.numpy(), lambda t: t.numpy().astype(t.numpy().dtype)):
        learner = make_learner()
        learner.new_task([0, 1])
        learner.observe(form(x), form(y))
        states.append(learner.state_dict())
        learner.predict(form(x))
    learner = make_learner()
    learner.new_task([0, 1])
    learner.observe(x, y.tolist())
    states.append(learner.state_dict())
    assert all(differ(states[0], s) == [] for s in states[1:])


def test_float_vectors_and_a_network_of_ones_own() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 4, bias=False)
            self.body = nn.Linear(5, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.body(x).relu())  # type: ignore[no-any-return]

    learner = Learner(
        Two(), (5,), 4, head="out", dtype=torch.float32, buffer=10, batch_size=4, device="cpu"
    )
    assert learner.network.head_name == "out"
    rng = np.random.default_rng(0)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for _ in range(6):
            learner.observe(rng.normal(size=(4, 5)), rng.choice(classes, 4))
    assert learner.predict_proba(rng.normal(size=(3, 5))).shape == (3, 4)
    assert learner.memory.x.dtype == torch.float32


def test_bf16_on_the_cpu(make_learner: Make, teach: Teach, images: Dataset) -> None:
    learner = teach(make_learner(precision="bf16"))
    assert learner.predict_proba(images.test_x).dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in learner.network.parameters())


# ---------------------------------------------------------------- tasks


def test_methods_hear_of_tasks_and_get_their_data_back(
    make_learner: Make, make_batches: Any
) -> None:
    method = Rereads()
    learner = make_learner(method)
    stream = make_batches(3, steps=3)
    for k, batches in enumerate(stream[:2]):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    learner.end_task()
    learner.end_task()  # twice is once
    assert method.begun == 2
    assert len(method.ended) == 2
    for (x, y), batches in zip(method.ended, stream, strict=False):
        assert torch.equal(x, torch.cat([b[0] for b in batches]))
        assert torch.equal(y, torch.cat([b[1] for b in batches]))
    assert float(method.moved) > 0


def test_methods_that_do_not_reread_get_nothing(make_learner: Make, teach: Teach) -> None:
    class Plain(Rereads):
        rereads_task = False

    method = Plain()
    teach(make_learner(method)).end_task()
    assert [(len(x), len(y)) for x, y in method.ended] == [(0, 0), (0, 0)]


# ---------------------------------------------------------------- bad input


X = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
Y = torch.tensor([0, 1, 0, 1])
FLOAT = torch.zeros(4, 3, 8, 8)


def nan(value: float) -> Tensor:
    x = FLOAT.clone()
    x[2, 1, 3, 3] = value
    return x


BAD_BATCHES: list[tuple[str, Any, Any, list[str]]] = [
    ("out of range", X, [0, 1, 6, 0], ["y[2]", "6", "0 to 5"]),
    ("negative", X, [0, -1, 1, 0], ["y[1]", "-1", "0 to 5"]),
    ("float", X, [0.0, 1.0, 0.0, 1.0], ["y", "float", "whole numbers"]),
    ("bool", X, [True, False, True, False], ["y", "bool", "whole numbers"]),
    ("shorter", X, [0, 1, 0], ["y", "(3,)", "(4,)"]),
    ("longer", X, [0, 1, 0, 1, 0], ["y", "(5,)", "(4,)"]),
    ("two-dimensional", X, [[0], [1], [0], [1]], ["y", "(4, 1)", "(4,)"]),
    ("empty x", X[:0], [], ["x", "(0, 3, 8, 8)"]),
    ("empty list", [], [], ["x", "(0,)"]),
    ("channels", X[:, :1], Y, ["x", "(1, 8, 8)", "(3, 8, 8)"]),
    ("size", X[..., :7], Y, ["x", "(3, 8, 7)", "(3, 8, 8)"]),
    ("flat", X.flatten(1), Y, ["x", "(192,)", "(3, 8, 8)"]),
    ("one image", X[0], Y, ["x", "(3, 8, 8)"]),
    ("dtype", FLOAT, Y, ["dtype", "float32", "uint8"]),
    ("strings", np.full((4, 3, 8, 8), "a"), Y, ["dtype", "<U1", "numbers"]),
]


@pytest.mark.parametrize(
    ("x", "y", "words"), [b[1:] for b in BAD_BATCHES], ids=[b[0] for b in BAD_BATCHES]
)
def test_bad_batches_are_named_and_change_nothing(
    x: Any, y: Any, words: list[str], make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(), tasks=1)
    before = learner.state_dict()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        learner.observe(x, y)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:0], ["x", "(0, 3, 8, 8)"]),
        (X[:, :2], ["(2, 8, 8)", "(3, 8, 8)"]),
        (FLOAT, ["dtype", "float32", "uint8"]),
    ],
)
def test_bad_questions(x: Tensor, words: list[str], make_learner: Make) -> None:
    learner = make_learner()
    for ask in (learner.predict, learner.predict_proba):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            ask(x)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_images(value: float, make_learner: Make, differ: Differ) -> None:
    learner = make_learner(dtype=torch.float32)
    learner.new_task([0, 1])
    before = learner.state_dict()
    for call in (lambda x: learner.observe(x, Y), learner.predict, learner.predict_proba):
        with pytest.raises(ValueError, match=r"x\[2\] holds a NaN or an infinite value, expected"):
            call(nan(value))
    assert differ(before, learner.state_dict()) == []


def test_no_task_has_begun(make_learner: Make, teach: Teach) -> None:
    learner = make_learner()
    with pytest.raises(ValueError, match="new_task"):
        learner.observe(X, Y)
    teach(learner, tasks=1).end_task()
    with pytest.raises(ValueError, match="new_task"):
        learner.observe(X, Y)


@pytest.mark.parametrize("classes", [[], [6], [-1], [2, 77]])
def test_bad_tasks_are_named_and_change_nothing(
    classes: list[int], make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(), tasks=1)
    before = learner.state_dict()
    with pytest.raises(ValueError, match=re.escape(f"{classes}") + ".*0 to 5"):
        learner.new_task(classes)
    assert differ(before, learner.state_dict()) == []


BAD_OPTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"method": "er-dualcba"}, ["method", "'er-dualcba'", "did you mean 'er-dual-cba'"]),
    ({"method": "sgd"}, ["method", "'sgd'", "er-cba"]),
    ({"method": "er", "adaptor": "cba"}, ["adaptor", "'cba'"]),
    ({"method": ER(), "adaptor": "dual"}, ["adaptor", "'dual'", "dual-cba"]),
    ({"buffer": 0}, ["buffer", "0", "at least 1"]),
    ({"buffer": -5}, ["buffer", "-5", "at least 1"]),
    ({"batch_size": 0}, ["batch_size", "0", "at least 1"]),
    ({"outer_every": 0}, ["outer_every", "0", "at least 1"]),
    ({"levels": "two"}, ["levels", "'two'", "'bi' or 'joint' or 'buffer'"]),
    ({"method": "er", "levels": "joint"}, ["levels", "'joint'", "'bi' without an adaptor"]),
    ({"lr": 0.0}, ["lr", "0.0", "above 0"]),
    ({"lr": float("nan")}, ["lr", "nan", "above 0"]),
    ({"lr": float("inf")}, ["lr", "inf", "above 0"]),
    ({"adaptor_lr": -1.0}, ["adaptor_lr", "-1.0", "above 0"]),
    ({"dtype": torch.int16}, ["dtype", "int16", "uint8"]),
    ({"forward": "both"}, ["forward", "'both'", "'split' or 'concat'"]),
    ({"ibn_average": "mean"}, ["ibn_average", "'mean'", "'cumulative' or 'ema'"]),
    ({"precision": "fp16"}, ["precision", "'fp16'", "'fp32'", "'bf16'"]),
    ({"engine": "fast"}, ["engine", "'fast'", "'eager'"]),
    ({"engine": "captured"}, ["engine", "'captured'", "cpu"]),
    ({"device": "tpu"}, ["device", "'tpu'", "'cpu'"]),
    ({"device": "mps"}, ["device", "'mps'", "'cpu'"]),
    ({"device": "cuda:99"}, ["device", "'cuda:99'", "CUDA devices"]),
    ({"head": "8"}, ["linear layer", "'8'", "7"]),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_bad_options_name_the_value(
    options: dict[str, Any], words: list[str], make_learner: Make
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_learner(**options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_at_least_two_classes(make_net: Any) -> None:
    with pytest.raises(ValueError, match="num_classes is 1, expected a whole number of at least 2"):
        Learner(make_net(), (3, 8, 8), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_no_cuda_where_cuda_was_asked_for(make_learner: Make) -> None:
    with pytest.raises(ValueError, match=r"device is 'cuda', expected .* CUDA"):
        make_learner(device="cuda")


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(3, 6, 8), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Softmax(1)),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 6)),
    ],
    ids=["no linear layer", "not the last", "outputs", "inputs"],
)
def test_networks_without_a_final_linear_layer(network: nn.Module, make_learner: Make) -> None:
    with pytest.raises(ValueError, match="network") as caught:
        make_learner(network=network)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- a loss that is no number


@pytest.mark.parametrize("method", METHODS)
def test_a_nan_loss_stops_with_step_task_and_last_finite_loss(
    method: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(method)
    spy: list[float] = []
    loss = learner.method.loss
    learner.method.loss = lambda *a: _note(spy, loss(*a))  # type: ignore[method-assign]

    def run() -> None:
        for k, batches in enumerate(make_batches(3)):
            learner.new_task([2 * k, 2 * k + 1])
            for i, (x, y) in enumerate(batches):
                if (k, i) == (1, 2):
                    learner.lr.fill_(1e30)
                learner.observe(x, y)

    with pytest.raises(FloatingPointError) as caught:
        run()
    at = next(i for i, v in enumerate(spy) if not np.isfinite(v))
    assert at == 8  # the step after the one with the huge rate
    message = str(caught.value)
    assert f"step {at + 1} " in message
    assert "task 2" in message
    assert f"{spy[at - 1]:.4g}" in message
    assert "\n" not in message


def _note(into: list[float], loss: Tensor) -> Tensor:
    into.append(loss.item())
    return loss


def test_a_huge_rate_from_the_start(make_learner: Make, teach: Teach) -> None:
    with pytest.raises(FloatingPointError, match=r"step 2 in task 1; the last finite loss was \d"):
        teach(make_learner("er", lr=1e30))


def test_after_loading_the_last_finite_loss_is_still_known(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    """The same line whether or not the run was interrupted."""
    lines = []
    for interrupted in (False, True):
        learner = teach(make_learner("er"))
        if interrupted:
            state, learner = learner.state_dict(), make_learner("er")
            learner.load_state_dict(state)
        learner.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr,operator]
        with pytest.raises(FloatingPointError) as caught:
            learner.observe(*make_batches(3)[1][0])
        lines.append(str(caught.value))
    assert lines[0] == lines[1]


def test_a_good_state_loaded_after_a_nan_goes_on(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    good = teach(make_learner("er"), steps=3)  # six steps
    state = good.state_dict()
    broken = teach(make_learner("er"), steps=2)
    broken.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr,operator]
    x, y = make_batches(3)[1][0]
    for _ in range(2):  # its losses five and six are no numbers
        with pytest.raises(FloatingPointError):
            broken.observe(x, y)
    broken.load_state_dict(state)
    broken.observe(x, y)
