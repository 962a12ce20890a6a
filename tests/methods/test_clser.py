"""CLS-ER against NumPy: the selected targets, and the updates of the averages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, log_softmax
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba import Learner
from dualcba.adaptors.adaptor import ADAPTORS
from dualcba.adaptors.hypergradient import hypergradient
from dualcba.data import Transform
from dualcba.losses import Batch, identity
from dualcba.memory import Reservoir
from dualcba.methods import Context
from dualcba.methods.clser import CLSER, select_confident, update_average
from dualcba.nets import MLP, Network
from dualcba.tasks.class_sets import ClassSets

C, D = 5, 4
Floats = NDArray[np.float64]


def bound(module: nn.Module | None = None, **options: Any) -> CLSER:
    """A method in a small network, with averages that differ from it and from each other."""
    torch.manual_seed(0)
    network = Network(module or nn.Linear(D, C), (D,), C).double()
    method = CLSER(**options)
    transform = Transform([0.0], [1.0])
    memory = Reservoir(4, (D,))
    method.bind(Context(network, ClassSets(C), memory, transform, torch.tensor(0.1), 4))
    with torch.no_grad():
        for k, p in enumerate([*method.stable.parameters(), *method.plastic.parameters()]):
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    return method


def batches(method: CLSER, seed: int = 0) -> tuple[Batch, list[Batch], Batch]:
    """Return new, memory and outer batches with the outputs of the trained network."""
    rng = np.random.default_rng(seed)
    out, start = [], 0
    for n in (6, 8, 8):
        x = torch.from_numpy(rng.normal(size=(n, D)))
        y = torch.from_numpy(rng.integers(0, C, n))
        with torch.no_grad():
            z, h = method.context.network(x)
        out.append(Batch(x, y, z, h, {}, slice(start, start + n)))
        start += n
    return out[0], [out[1]], out[2]


def test_layers_that_are_frozen_are_so_in_the_averages() -> None:
    network = nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, C))
    network[1].eval()
    method = bound(network)
    for average in (method.stable, method.plastic):
        assert [m.training for m in average.module] == [True, False, True, True]


def ce(z: Floats, y: NDArray[np.int64]) -> float:
    return float(cross_entropies(z, y).mean())


def linear(network: Network, x: Tensor) -> Floats:
    weight, bias = (p.numpy() for p in network.parameters())
    return x.numpy() @ weight.T + bias


def chosen(stable: Floats, plastic: Floats, y: NDArray[np.int64]) -> Floats:
    """Compute the loss sample by sample."""
    rows = []
    for s, p, c in zip(stable, plastic, y, strict=True):
        rows.append(s if log_softmax(s[None])[0, c] > log_softmax(p[None])[0, c] else p)
    return np.stack(rows)


def test_loss_against_numpy() -> None:
    method = bound(weight=0.4)
    new, mem, _ = batches(method)
    z, y = mem[0].z.numpy(), mem[0].y.numpy()
    stable, plastic = (linear(net, mem[0].x) for net in (method.stable, method.plastic))
    target = chosen(stable, plastic, y)
    both = {bool((t == s).all()) for t, s in zip(target, stable, strict=True)}
    assert both == {True, False}  # each average is the target of some sample
    want = ce(new.z.numpy(), new.y.numpy()) + ce(z, y) + 0.4 * np.mean((z - target) ** 2)
    assert method.loss(new, mem, identity).item() == pytest.approx(want, abs=1e-6)


def test_consistency_may_have_a_draw_of_its_own() -> None:
    method = bound(weight=0.4, draws=2)
    new, (labels,), own = batches(method)
    z, y = own.z.numpy(), own.y.numpy()
    target = chosen(*(linear(net, own.x) for net in (method.stable, method.plastic)), y)
    want = ce(new.z.numpy(), new.y.numpy()) + ce(labels.z.numpy(), labels.y.numpy())
    want += 0.4 * np.mean((z - target) ** 2)
    assert method.loss(new, [labels, own], identity).item() == pytest.approx(want, abs=1e-6)
    with pytest.raises(ValueError, match="draws is 3, expected 1 or 2"):
        CLSER(draws=3)


def test_consistency_stays_raw_under_an_adaptor() -> None:
    method = bound(weight=0.4)
    new, mem, _ = batches(method, 1)
    r = np.random.default_rng(5).normal(size=(14, C))
    z, y = mem[0].z.numpy(), mem[0].y.numpy()
    stable, plastic = (linear(net, mem[0].x) for net in (method.stable, method.plastic))
    want = ce(new.z.numpy() + r[:6], new.y.numpy()) + ce(z + r[6:], y)
    want += 0.4 * np.mean((z - chosen(stable, plastic, y)) ** 2)
    loss = method.loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
    assert loss.item() == pytest.approx(want, abs=1e-6)


def test_only_new_samples_while_the_memory_is_empty() -> None:
    method = bound()
    new, _, _ = batches(method)
    want = ce(new.z.numpy(), new.y.numpy())
    assert method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_the_plastic_average_wins_a_tie() -> None:
    stable, plastic = torch.zeros(1, 3), torch.ones(1, 3)  # the same distribution
    assert torch.equal(select_confident(stable, plastic, torch.tensor([1])), plastic)


@pytest.mark.parametrize("kind", ["cba", "dual-cba"])
def test_closed_form_is_the_autograd_one(kind: str) -> None:
    method = bound()
    new, mem, outer = batches(method, 2)
    sets = ClassSets(C)
    sets.new_task([0, 1, 2])
    sets.new_task([3, 4])
    adaptor = ADAPTORS[kind](sets, torch.Generator().manual_seed(0), width=8).double()
    head = method.context.network.head
    closed, unrolled = (
        hypergradient(adaptor, method, new, mem, outer, head, 0.3, closed_form=form)
        for form in (True, False)
    )
    without = hypergradient(adaptor, CLSER(weight=0.0), new, [], outer, head, 0.3)
    assert method.closed_form
    for a, b, c in zip(closed, unrolled, without, strict=True):
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-14)
        assert c is not None
        assert not torch.allclose(a, c)


# ---------------------------------------------------------------------- the averages


def test_rates_and_update_probabilities() -> None:
    method, rng = CLSER(), np.random.default_rng(0)
    for step, rate in ((0, 1 / 2), (1, 2 / 3), (9, 10 / 11), (998, 0.999), (5000, 0.999)):
        rates = np.stack([method.noise(rng, step) for _ in range(2000)])
        assert {round(float(v), 12) for v in rates.ravel()} == {round(rate, 12), 1.0}
        moved = (rates < 1).mean(0)
        assert moved == pytest.approx([0.7, 0.9], abs=0.04)
        both = (rates < 1).all(1).mean()
        assert both == pytest.approx(0.63, abs=0.04)  # independently


def test_update_average_is_the_moving_average() -> None:
    rng = np.random.default_rng(0)
    old, new = ([rng.normal(size=s) for s in ((3, 2), (4,))] for _ in range(2))
    average = [torch.from_numpy(a.copy()) for a in old]
    update_average(
        average, [torch.from_numpy(a) for a in new], torch.tensor(0.8, dtype=torch.float64)
    )
    for a, o, n in zip(average, old, new, strict=True):
        assert np.allclose(a.numpy(), 0.8 * o + 0.2 * n, atol=1e-12)


def test_a_rate_of_one_changes_no_bit() -> None:
    average = [torch.randn(100)]
    before = average[0].clone()
    update_average(average, [torch.randn(100) * 1e6], torch.tensor(1.0, dtype=torch.float64))
    assert torch.equal(average[0], before)


def test_averages_of_a_run(make_learner: Callable[..., Learner], make_batches: Any) -> None:
    learner = make_learner("clser-cba")
    method = learner.method
    assert isinstance(method, CLSER)
    copies = {"stable": method.stable, "plastic": method.plastic}
    want = {
        name: [p.numpy().astype(np.float64) for p in c.parameters()] for name, c in copies.items()
    }
    rates = []
    noise = method.noise

    def recorded(rng: np.random.Generator, step: int) -> NDArray[np.float64]:
        rates.append(noise(rng, step))
        return rates[-1]

    method.noise = recorded  # type: ignore[method-assign]
    for k, task in enumerate(make_batches(3, 4)[:2]):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in task:
            learner.observe(x, y)
            theta = [p.detach().numpy() for p in learner.network.parameters()]
            for rate, average in zip(rates[-1], want.values(), strict=True):
                average[:] = [
                    rate * a + (1 - rate) * t for a, t in zip(average, theta, strict=True)
                ]
    assert len(rates) == 8
    for name, copy in copies.items():
        for p, w in zip(copy.parameters(), want[name], strict=True):
            assert np.allclose(p.numpy(), w, atol=1e-6)


def test_copies_are_networks_of_their_own() -> None:
    method = bound(MLP((D,), C, width=6))
    network = method.context.network
    x = torch.randn(8, D, dtype=torch.float64)
    for copy in (method.stable, method.plastic):
        head = copy.head
        assert head is not network.head
        z, h = copy(x)
        assert torch.allclose(z, h @ head.weight.T + head.bias)
    shared = {p.data_ptr() for p in network.parameters()}
    assert not shared & {p.data_ptr() for p in method.parameters()}


def test_copies_take_batch_statistics_and_keep_none() -> None:
    method = bound(MLP((D,), C, width=6))
    _, mem, _ = batches(method)
    before = {k: v.clone() for k, v in method.context.network.state_dict().items()}
    kept = {k: v.clone() for k, v in method.state_dict().items()}
    target = method.target(mem[0])
    other = method.target(Batch(mem[0].x[:4], mem[0].y[:4], mem[0].z[:4], mem[0].h[:4]))
    assert not torch.allclose(target[:4], other)  # batch statistics differ
    assert all(torch.equal(v, method.state_dict()[k]) for k, v in kept.items())
    assert all(torch.equal(v, before[k]) for k, v in method.context.network.state_dict().items())


def test_a_single_sample_takes_the_networks_running_statistics() -> None:
    """A copy has none, and one sample has no batch statistics."""
    method = bound(MLP((D,), C, width=6))
    _, mem, _ = batches(method)
    network = method.context.network
    for average in (method.stable, method.plastic):
        average.load_state_dict(dict(network.named_parameters()), strict=False)
    network(3 + 2 * mem[0].x)  # changes its running statistics
    one = Batch(mem[0].x[:1], mem[0].y[:1], mem[0].z[:1], mem[0].h[:1])
    target = method.target(one)
    network.eval()
    torch.testing.assert_close(target, network(one.x)[0].detach())


def test_copies_are_not_trained(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner("clser")
    assert not any(p.requires_grad for p in learner.method.parameters())
    mine = {id(p) for group in learner.parts.optimizer.param_groups for p in group["params"]}
    assert mine == {id(p) for p in learner.network.parameters()}


def test_each_average_is_evaluated_once_per_step(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    learner = make_learner("clser-dual-cba", outer_every=1)
    method = learner.method
    assert isinstance(method, CLSER)
    asked = []
    method.stable.register_forward_hook(lambda *_: asked.append(learner.step))
    teach(learner)
    assert asked == list(range(1, learner.step))  # the memory is empty at the first step
    assert method._cached is None


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["derpp-dual-cba", "clser-dual-cba", "rar-dual-cba"])
def test_steps_can_be_captured(
    method: str, make_learner: Callable[..., Learner], teach: Any, differ: Any
) -> None:
    ends = []
    for engine in ("eager", "captured"):
        learner = make_learner(method, device="cuda", engine=engine, precision="fp32")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the warning that a step cannot be captured
            teach(learner, tasks=3, steps=20)
        ends.append(learner.state_dict()["tensors"])
    for name, t in ends[0].items():
        assert torch.allclose(t.double(), ends[1][name].double(), rtol=1e-3, atol=1e-4), name


def test_a_second_pass_changes_running_statistics_alone(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    once, twice = (
        teach(make_learner("clser-cba", method_options={"second_pass": second}))
        for second in (False, True)
    )
    a, b = once.state_dict()["tensors"], twice.state_dict()["tensors"]
    differ = {name.rsplit(".", 1)[1] for name in a if not torch.equal(a[name], b[name])}
    assert differ == {"running_mean", "running_var", "num_batches_tracked"}


def test_a_second_pass_weighs_the_memory_by_seventy_percent() -> None:
    """From statistics of zero, the order new, memory, memory with a momentum of 0.1."""
    norm = nn.BatchNorm1d(D)
    method = bound(nn.Sequential(norm, nn.Linear(D, C)), second_pass=True)
    new, mem, _ = batches(method)
    norm.reset_running_stats()
    for batch in (new, *mem):
        method.context.network(batch.x)
    method.terms(new, mem)
    method.terms(new, mem)  # the outer step evaluates the terms too; there is one pass more
    a, b = new.x.mean(0), mem[0].x.mean(0)
    assert torch.allclose(norm.running_mean, 0.081 * a + 0.19 * b)  # 0.19 / 0.271 is 70 %
    before = norm.running_mean.clone()
    one, other = (replace(b, x=b.x[:1], y=b.y[:1], z=b.z[:1], h=b.h[:1]) for b in (new, mem[0]))
    method.terms(one, [replace(mem[0], x=mem[0].x.clone())])  # a new sample used the statistics
    method.terms(new, [other])  # or a single stored one
    assert torch.equal(norm.running_mean, before)


def test_second_pass_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="second_pass is 1, expected True or False"):
        CLSER(second_pass=1)  # type: ignore[arg-type]
