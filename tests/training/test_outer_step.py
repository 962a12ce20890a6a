"""The outer step: when φ is updated, by what gradient, and what a new task resets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_helpers import Spy, parameters, same

from dualcba import Learner, Transform
from dualcba.losses import Batch

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


def outer_draws(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, Batch]]:
    """The memory draw of the inner loss and that of the outer one, of each outer step to come."""
    pairs: list[tuple[Batch, Batch]] = []
    step = learner.parts.outer_loop.step

    def spy(new: Batch, mem: Sequence[Batch], draw: Batch) -> None:
        pairs.append((mem[0], draw))
        step(new, mem, draw)

    monkeypatch.setattr(learner.parts.outer_loop, "step", spy)
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
    stored = learner.parts.context.transform(learner.memory.x).flatten(1).tolist()
    pairs = outer_draws(learner, monkeypatch)
    learner.observe(*make_batches(3)[1][0])
    assert not all(row in stored for row in pairs[0][1].x.flatten(1).tolist())


def outer_steps(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps, from 0, at which the adaptor learns."""
    at: list[int] = []
    step = learner.parts.outer_loop.step

    def spy(*args: Any) -> None:
        at.append(learner.step)
        step(*args)

    monkeypatch.setattr(learner.parts.outer_loop, "step", spy)
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
    assert dual.parts.outer_loop.optimizer is not None
    assert not dual.parts.outer_loop.optimizer.state
    for batches, adapted in spy.steps:
        assert all(torch.equal(b.z, z) for b, z in zip(batches, adapted, strict=True))


@pytest.mark.filterwarnings("ignore:observed y is")
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
    outer, theta = learner.parts.outer_loop.step, learner.parts.optimizer.step
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

    monkeypatch.setattr(learner.parts.outer_loop, "step", watch_outer)
    monkeypatch.setattr(learner.parts.optimizer, "step", watch_theta)
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


NETWORK_FIRST: dict[str, Any] = {"outer_every": 1, "update_order": "network-first"}


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"space": "probability"}])
@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba", "derpp-dual-cba"])
def test_network_first_makes_both_steps_with_phi_before_its_update(
    method: str, options: dict[str, Any], make_learner: Make, teach: Teach, make_batches: Any,
    monkeypatch: Any,
) -> None:  # fmt: skip
    """φ moves as if it came first, θ and what is stored as if φ had not moved, to the last bit."""
    learner, usual, still = (make_learner(method, outer_every=1, **options) for _ in range(3))
    for one in (learner, usual, still):
        teach(one)
    learner.parts.outer_loop.network_first = True
    monkeypatch.setattr(still.parts.outer_loop, "step", lambda *_: None)
    for one in (learner, usual, still):
        one.observe(*make_batches(3)[1][0])
    got, phi, theta = (one.state_dict()["tensors"] for one in (learner, usual, still))
    assert {k.split(".")[0] for k in got} >= {"adaptor", "adaptor_optimizer", "network", "memory"}
    for name, value in got.items():
        assert torch.equal(value, (phi if name.startswith("adaptor") else theta)[name]), name
    weight = "network.module.0.weight"
    assert not torch.equal(got[weight], phi[weight])


@pytest.mark.parametrize("order", ["network-first", "adaptor-first"])
def test_network_first_makes_the_virtual_step_of_the_last_layer_the_real_one(
    order: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    """L_buf is that of the last layer which the step leaves, as in the paper's Eq. (6)."""
    given = {**NETWORK_FIRST, "update_order": order}
    learner = teach(make_learner("er-dual-cba", adaptor_lr=0.1, **given))
    seen: list[Batch] = []
    terms = learner.parts.outer_loop.outer_terms
    loop = learner.parts.outer_loop
    monkeypatch.setattr(loop, "outer_terms", lambda b: seen.append(b) or terms(b))
    learner.observe(*make_batches(3)[1][0])
    real = learner.network.head(seen[-1].h).detach()
    assert torch.allclose(seen[-1].z, real, atol=1e-5) is (order == "network-first")


def test_both_orders_are_the_same_where_phi_stands_still(
    make_learner: Make, teach: Teach, differ: Differ
) -> None:
    one, other = (
        teach(make_learner("er-dual-cba", outer_every=99, update_order=order), tasks=1)
        for order in ("adaptor-first", "network-first")
    )
    assert differ(one.state_dict(), other.state_dict()) == []


def test_one_mean_over_all_samples_is_the_sum_of_means_at_half_the_rate(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    """With as many samples from the memory as new ones, the virtual step included."""
    both = (("batches", 0.05), ("samples", 0.1))
    learners = [teach(make_learner("er-dual-cba", outer_every=1), steps=4) for _ in both]
    for learner, (mean, lr) in zip(learners, both, strict=True):
        learner.method.sample_mean = mean == "samples"
        learner.parts.context.lr.fill_(lr)
        learner.observe(*make_batches(3)[1][0])
    one, other = (learner.state_dict()["tensors"] for learner in learners)
    for name, value in one.items():
        if name.startswith(("network.", "adaptor.")):
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6, msg=name)


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

    def spy(*args: Any, **options: Any) -> Any:
        record["args"], record["grads"] = args, exact(*args, **options)
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
@pytest.mark.parametrize(
    ("levels", "outer_loss"), [("joint", "method"), ("buffer", "method"), ("buffer", "ce")]
)
def test_a_single_level_is_adam_on_the_loss_of_the_adapted_network(
    levels: str, outer_loss: str, method: str, make_learner: Make, teach: Teach,
    make_batches: Any, monkeypatch: Any,
) -> None:  # fmt: skip
    """Joint: the very loss that θ then moves by, at φ before. Buffer: that of a fresh draw."""
    given = {"levels": levels, "outer_loss": outer_loss, "outer_every": 1, "adaptor_lr": 0.02}
    learner = teach(make_learner(method, **given), tasks=1, steps=2)
    learner.new_task([2, 3])
    learner.parts.forward_pass.samplewise = False  # so that each batch has a forward of its own
    network, adaptor = copy.deepcopy(learner.network.module), copy.deepcopy(learner.adaptor)
    assert adaptor is not None
    adaptor._shared = (learner.class_sets,)
    sets_then = copy.deepcopy(learner.class_sets)
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
        if draws == 2 and outer_loss == "method":
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
    learner = teach(make_learner("er-dual-cba", **options))
    adam = learner.parts.outer_loop.optimizer
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
    learner = make_learner("er-dual-cba", **{"width": 16, **options})
    teach(learner, tasks=1)
    learner.new_task([2, 3])
    before = parameters(learner.adaptor)
    learner.observe(*_second(learner))
    after = parameters(learner.adaptor)
    assert all(not torch.equal(after[n], p) for n, p in before.items() if n.endswith("weight"))
    teach(learner, tasks=1)
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())


@pytest.mark.parametrize("method", ["er-cba", "er-balanced-cba", "derpp-dual-cba"])
def test_the_prior_counts_the_samples_of_the_inner_batches(
    method: str, make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner(method, prior=True))
    learner.new_task([4, 5])
    spy = Spy(learner)
    for x, y in make_batches(3)[2][:3]:
        learner.observe(x, y)
    y = torch.cat([b.y for batches, _ in spy.steps for b in batches])
    assert learner.adaptor is not None
    assert learner.adaptor.prior is not None
    want = torch.bincount(y, minlength=6) / 3
    torch.testing.assert_close(learner.adaptor.prior.mean, want)
    batches, adapted = spy.steps[-1]
    expected = batches[0].z + learner.adaptor(batches[0].z)
    torch.testing.assert_close(adapted[0], expected.detach())


def test_the_pool_is_the_memory_before_the_step_and_the_current_batch(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er-dual-cba", counts=True, buffer=200), steps=3)
    assert learner.adaptor is not None
    assert learner.adaptor.pool is not None
    learner.new_task([4, 5])
    for x, y in make_batches(3)[2][:3]:
        stored = learner.memory.y[: learner.memory.filled].clone()
        learner.observe(x, y)
        want = torch.bincount(torch.cat([stored, y]), minlength=6)
        assert learner.adaptor.pool.tolist() == want.tolist()


@pytest.mark.parametrize(
    ("warmup", "want"), [(0, [4, 7]), (1, [4, 7]), (2, [4, 5, 7]), (9, [4, 5, 6, 7])]
)
def test_more_outer_steps_at_the_start_of_a_task(
    warmup: int, want: list[int], make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner("er-dual-cba", outer_every=3, outer_warmup=warmup)
    at = outer_steps(learner, monkeypatch)
    teach(learner, tasks=2, steps=4)
    assert at == want


def test_logit_adjustment_alone_takes_no_outer_step(
    make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    given = {"specific": "none", "agnostic": False, "prior": True}
    learner = make_learner("er-balanced-cba", **given)
    at = outer_steps(learner, monkeypatch)
    spy = Spy(learner)
    teach(learner)
    assert at == []
    assert learner.parts.outer_loop.optimizer is None
    moved = [not torch.equal(adapted[0], b[0].z) for b, adapted in spy.steps]
    assert moved == [False] * 5 + [True] * 5
    teach(make_learner("er-balanced-cba", **given, levels="joint"), tasks=1)


def _second(learner: Learner) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (8, 3, 8, 8), generator=rng, dtype=torch.uint8)
    return x, torch.tensor([2, 3] * 4)
