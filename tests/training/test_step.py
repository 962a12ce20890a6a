"""The training step: θ's gradient, the memory, seeds, samples that come alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_helpers import METHODS, Spy, TwoDraws, parameters, same

from dualcba import Learner, Transform
from dualcba.losses import Batch
from dualcba.methods.er import ER
from dualcba.nets import MLP
from dualcba.training.backup import Backup

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


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
    raw = learner.parts.context.transform(learner.memory.x[:4]).clone()
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
    norm = learner.parts.forward_pass.norm_layers[0]
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


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_state_another_seed_another(
    method: str, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    a, b, c = (teach(make_learner(method, seed=s)).state_dict() for s in (4, 4, 5))
    assert differ(a, b) == []
    assert "memory.x" in differ(a, c)
    assert any(name.startswith("network.") for name in differ(a, c))


def test_the_gradient_of_a_lone_sample_is_right(vectors: Make) -> None:
    """The new sample is normalised by running statistics, which the memory's forward moves."""
    learner = vectors(batch_size=4)
    learner.new_task([0, 1, 2, 3])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    y = rng.integers(0, 4, 9)
    learner.observe(x[:8], y[:8])
    before = MLP((5,), 4, width=6)
    before.load_state_dict(learner.network.module.state_dict())
    rows = torch.from_numpy(
        copy.deepcopy(learner.parts.sampler.rng["memory"]).choice(8, 4, replace=False)
    )
    mem_x, mem_y, _ = learner.memory.read(rows)
    learner.observe(x[8:], y[8:])

    mem = F.cross_entropy(before(mem_x), mem_y)
    twin = MLP((5,), 4, width=6)  # its running statistics are those after the memory's forward
    twin.load_state_dict(before.state_dict())
    new = F.cross_entropy(twin.eval()(torch.from_numpy(x[8:])), torch.from_numpy(y[8:]))
    slopes = torch.autograd.grad(mem, list(before.parameters()))
    other = torch.autograd.grad(new, list(twin.parameters()))
    for p, old, a, b in zip(
        learner.network.module.parameters(), before.parameters(), slopes, other, strict=True
    ):
        torch.testing.assert_close(p, old - 0.1 * (a + b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["bn", "cn", "adab2n"])
def test_single_samples_with_any_normalisation(norm: Any) -> None:
    from dualcba.normalization.layers import convert_normalization

    net = convert_normalization(MLP((5,), 4, width=16), norm)
    learner = Learner(net, (5,), 4, dtype=torch.float32, buffer=8, batch_size=4, device="cpu")
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for k in range(6):
            learner.observe(np.random.default_rng(k).normal(size=(1, 5)), [classes[k % 2]])
    assert learner.predict_proba(np.zeros((2, 5))).isfinite().all()


def test_samples_that_require_a_gradient_get_none(vectors: Make) -> None:
    learner = vectors()
    learner.new_task([0, 1])
    x = torch.ones(4, 5, requires_grad=True)
    learner.observe(x, [0, 1, 0, 1])
    assert x.grad is None


def test_a_step_that_failed_counts_no_sample(
    monkeypatch: pytest.MonkeyPatch, vectors: Make
) -> None:
    learner = vectors()
    learner.new_task([0, 1])
    monkeypatch.setattr(learner.parts.engine, "run", fails)
    with pytest.raises(MemoryError):
        learner.observe(torch.randn(4, 5), torch.tensor([0, 1] * 2))
    assert learner.memory.filled == 0


def fails(*_: object) -> None:
    raise MemoryError


def test_a_step_that_fails_leaves_no_empty_rows_in_the_memory() -> None:
    network = nn.Sequential(nn.Linear(5, 4))
    learner = Learner(network, (5,), 4, dtype=torch.float32, batch_size=4, device="cpu")
    learner.new_task([2, 3])

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = network.register_forward_hook(refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.observe(np.ones((6, 5)), [2, 3] * 3)
    hook.remove()
    assert learner.memory.filled == 0
    learner.observe(np.ones((2, 5)), [2, 3])
    assert learner.memory.y[: learner.memory.filled].tolist() == [2, 3]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_whole_numbers_of_a_method_are_restored(on_gpu: bool) -> None:
    """On a GPU only the counts of batches are left out, on which nothing depends there."""

    class Counting(ER):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

    network, method = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Counting()
    context: Any = SimpleNamespace(network=network, lr=SimpleNamespace(is_cuda=on_gpu))
    outer_loop: Any = SimpleNamespace(adaptor=None, optimizer=None)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    backup = Backup(context, method, outer_loop, optimizer)
    backup.save(with_adaptor=False)
    method.count += 1
    network(torch.ones(2, 2))
    backup.restore()
    batches: Any = network[1].num_batches_tracked
    mean: Any = network[1].running_mean
    assert (int(method.count), int(batches)) == (0, int(on_gpu))
    assert (mean == 0).all()
