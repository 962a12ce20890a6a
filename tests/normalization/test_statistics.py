"""IBN against a direct computation; what evaluation restores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.data import disjoint
from dualcba.evaluation import Evaluator
from dualcba.methods.er import ER
from dualcba.normalization.statistics import (
    RunningStatistics,
    batch_norms,
    borrowed_averages,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
    without_tracking,
)

Make = Callable[..., Learner]
Teach = Callable[..., Learner]


def running(learner: Learner) -> list[Tensor]:
    stats = []
    for n in learner.parts.forward_pass.norm_layers:
        assert n.running_mean is not None
        assert n.running_var is not None
        stats += [n.running_mean.clone(), n.running_var.clone()]
    return stats


def under_ibn(learner: Learner) -> tuple[list[Tensor], list[Tensor]]:
    """Return the statistics of IBN, and the batches they were estimated from."""
    views: list[Tensor] = []
    hook = learner.network.register_forward_pre_hook(lambda _, a: views.append(a[0].clone()))
    with learner.evaluating("ibn"):
        stats = running(learner)
    hook.remove()
    return stats, views


def moments(views: list[Tensor], network: nn.Module) -> list[list[Tensor]]:
    """Return mean and unbiased variance at each normalisation, batch by batch, in training mode."""
    network = copy.deepcopy(network).train()
    layers = batch_norms(network)
    out: list[list[Tensor]] = []
    for layer in layers:
        layer.register_forward_pre_hook(
            lambda _, a: out[-1].extend(
                (a[0].transpose(0, 1).flatten(1).mean(1), a[0].transpose(0, 1).flatten(1).var(1))
            )
        )
    with torch.no_grad():
        for view in views:
            out.append([])
            network(view)
    return out


def average(values: list[list[Tensor]], weights: list[float]) -> list[Tensor]:
    return [
        sum(w * v for w, v in zip(weights, column, strict=True))
        for column in zip(*values, strict=True)
    ]  # type: ignore[misc]


def close(a: list[Tensor], b: list[Tensor]) -> None:
    for one, two in zip(a, b, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [200, 17, 9])
def test_the_cumulative_average_over_the_memory(
    chunk: int, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    monkeypatch.setattr("dualcba.prediction.memory_pass.IBN_BATCH", chunk)
    learner = teach(make_learner(buffer=50))
    stats, views = under_ibn(learner)
    k = -(-50 // chunk)
    assert len(views) == k
    close(stats, average(moments(views, learner.network.module), [1 / k] * k))


def test_the_cumulative_average_is_what_torch_calls_momentum_none(
    make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    monkeypatch.setattr("dualcba.prediction.memory_pass.IBN_BATCH", 16)
    learner = teach(make_learner(buffer=50))
    stats, views = under_ibn(learner)
    twin = copy.deepcopy(learner.network.module).train()
    for layer in batch_norms(twin):
        layer.reset_running_stats()
        layer.momentum = None
    with torch.no_grad():
        for view in views:
            twin(view)
    want = [s for n in batch_norms(twin) for s in (n.running_mean, n.running_var)]
    close(stats, want)  # type: ignore[arg-type]


def test_the_ema_weighs_later_batches_more_and_is_bias_corrected(
    make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner(buffer=50, batch_size=10, ibn_average="ema"))
    stats, views = under_ibn(learner)
    weights = np.array([0.1 * 0.9 ** (5 - k) for k in range(1, 6)])
    weights /= weights.sum()
    close(stats, average(moments(views, learner.network.module), weights.tolist()))


def test_the_literal_average_has_the_weights_of_the_papers_formula(
    make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner(buffer=50, batch_size=10, ibn_average="literal"))
    stats, views = under_ibn(learner)
    weights = [0.1 * 0.9 ** (5 - k) for k in range(1, 6)]
    close(stats, average(moments(views, learner.network.module), weights))


def test_the_continued_average_begins_at_the_statistics_of_training(
    make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner(buffer=50, batch_size=10, ibn_average="continued"))
    before = [t.clone() for t in running(learner)]
    stats, views = under_ibn(learner)
    weights = [0.1 * 0.9 ** (5 - k) for k in range(1, 6)]
    literal = average(moments(views, learner.network.module), weights)
    close(stats, [0.9**5 * own + rest for own, rest in zip(before, literal, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(before, running(learner), strict=True))


def test_the_ema_of_a_small_memory_has_several_batches(make_learner: Make, teach: Teach) -> None:
    """The protocol's 0.52 for M = 200 is 1 − 0.9⁷: seven batches of 32."""
    learner = teach(make_learner(buffer=200, ibn_average="ema"), tasks=3, steps=9)
    assert learner.memory.filled == 200
    _, views = under_ibn(learner)
    assert len(views) > 1


@pytest.mark.parametrize("average", ["cumulative", "ema"])
def test_ibn_momentum_gives_the_average(average: str) -> None:
    weights = np.zeros(7)
    for k in range(1, 8):
        s = ibn_momentum(k, average)
        weights *= 1 - s
        weights[k - 1] += s
    assert weights.sum() == pytest.approx(1.0)
    want = np.full(7, 1 / 7) if average == "cumulative" else 0.9 ** np.arange(6, -1, -1.0)
    assert weights == pytest.approx(want / want.sum())


@pytest.mark.parametrize("augment", [True, False])
def test_one_pass_over_the_memory_with_or_without_the_training_augmentation(
    augment: bool, make_learner: Make, teach: Teach, images: Dataset
) -> None:
    """Every stored sample is used once; each augmented view is a crop and flip of its image."""
    learner = teach(make_learner(buffer=30, ibn_augment=augment))
    raw = images.train_x[:30]  # all different
    learner.memory.x[:30] = raw
    _, (view,) = under_ibn(learner)
    assert len(view) == 30
    if augment:
        grid = torch.cartesian_prod(torch.arange(3), torch.arange(3), torch.arange(2))
        options = [learner.parts.context.transform(raw, g.expand(30, 3)) for g in grid]
    else:
        options = [learner.parts.context.transform(raw)]
    stack = torch.stack(options)  # (options, memories, …)
    match = (stack[:, :, None] == view).flatten(3).all(3).any(0)  # (memories, views)
    assert bool((match.sum(0) == 1).all())
    assert bool((match.sum(1) == 1).all())
    order = match.float().argmax(0)
    assert not torch.equal(order, torch.arange(30))  # shuffled
    plain = learner.parts.context.transform(raw)[order]
    assert bool((plain == view).flatten(1).all(1).all()) == (not augment)


def test_a_first_normalisation_by_hand(make_learner: Make, teach: Teach) -> None:
    """In NumPy, with one batch: mean and variance of the first layer over the memory."""
    learner = teach(make_learner(buffer=30, ibn_augment=False))
    stats, _ = under_ibn(learner)
    conv = learner.network.module[0]
    with torch.no_grad():
        out = conv(learner.parts.context.transform(learner.memory.x[:30])).double().numpy()
    assert stats[0].numpy() == pytest.approx(out.mean((0, 2, 3)), abs=1e-5)
    assert stats[1].numpy() == pytest.approx(out.var((0, 2, 3), ddof=1), rel=1e-4)


def test_statistics_are_estimated_once_per_step(
    make_learner: Make, teach: Teach, images: Dataset, make_batches: Any
) -> None:
    learner = teach(make_learner())
    calls: list[int] = []
    learner.network.register_forward_hook(lambda *_: calls.append(learner.step))
    first = learner.predict_proba(images.test_x)
    once = len(calls)
    assert torch.equal(learner.predict_proba(images.test_x), first)
    assert len(calls) == once + 1
    learner.observe(*make_batches(3)[1][0])
    calls.clear()
    learner.predict_proba(images.test_x)
    assert len(calls) == once


def test_each_step_has_its_own_order(make_learner: Make, teach: Teach) -> None:
    learner = teach(make_learner(buffer=30))
    _, (one,) = under_ibn(learner)
    learner._step += 1
    _, (two,) = under_ibn(learner)
    assert not torch.equal(one, two)


def test_ibn_is_the_default_with_dual_cba_only(make_learner: Make) -> None:
    used = [make_learner(m).statistics for m in ("er", "er-cba", "er-dual-cba")]
    assert used == ["bn", "bn", "ibn"]
    assert make_learner("er", ibn=True).statistics == "ibn"


def test_bn_and_ibn_predict_differently(make_learner: Make, teach: Teach, images: Dataset) -> None:
    bn, ibn = (teach(make_learner(ibn=i)).predict_proba(images.test_x) for i in (False, True))
    assert not torch.allclose(bn, ibn)


@pytest.mark.parametrize("average", ["cumulative", "ema", "literal", "continued"])
def test_running_statistics_are_restored(
    average: str, make_learner: Make, teach: Teach, images: Dataset
) -> None:
    learner = teach(make_learner(ibn_average=average))
    before = {k: v.clone() for k, v in learner.network.state_dict().items()}
    with learner.evaluating("ibn"):
        assert not torch.equal(running(learner)[0], before["module.1.running_mean"])
    learner.predict(images.test_x)
    after = learner.network.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    assert all(n.momentum == 0.1 for n in learner.parts.forward_pass.norm_layers)


class Fails(nn.Module):
    """Raises if `broken`."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise RuntimeError("broken")
        return x


@pytest.mark.parametrize("where", ["answering", "estimating"])
def test_running_statistics_are_restored_after_an_error(
    where: str, make_learner: Make, make_net: Any, teach: Teach, images: Dataset
) -> None:
    switch = Fails()
    network = make_net()
    network.insert(2, switch)  # after the first normalisation
    learner = teach(make_learner(network=network))
    before = {k: v.clone() for k, v in learner.network.state_dict().items()}
    modes_before = [m.training for m in learner.network.modules()]
    if where == "answering":
        learner.predict(images.test_x)  # the estimate already exists
    switch.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        learner.predict(images.test_x)
    after = learner.network.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    assert [m.training for m in learner.network.modules()] == modes_before
    assert all(n.momentum == 0.1 for n in learner.parts.forward_pass.norm_layers)


def test_a_network_without_batch_norm(
    make_learner: Make, make_net: Any, teach: Teach, images: Dataset
) -> None:
    learner = teach(make_learner(network=make_net(norm=False), ibn=True))
    assert learner.parts.forward_pass.norm_layers == []
    learner.predict(images.test_x)
    evaluator = Evaluator(learner, images, disjoint(images, 3))
    evaluator.evaluate("end")
    assert torch.equal(evaluator.counts["bn"][0], evaluator.counts["ibn"][0])


def test_without_two_stored_samples_there_is_no_estimate(
    make_learner: Make, teach: Teach, images: Dataset
) -> None:
    learner = make_learner(ibn=True, buffer=1)
    for filled in (0, 1):
        assert learner.memory.filled == filled
        stats, views = under_ibn(learner)
        assert views == []
        close(stats, running(learner))
        learner.predict(images.test_x)
        teach(learner)


def test_a_frozen_layer_is_tested_with_the_statistics_it_was_trained_with() -> None:
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )
    network[1].eval()
    learner = Learner(network, (3,), 2, dtype=torch.float32, batch_size=4, device="cpu")
    learner.new_task([0, 1])
    learner.observe(np.random.default_rng(0).normal(2, 3, (8, 3)), [0, 1] * 4)
    (mean, var), (moved, _) = (
        (n.running_mean.clone(), n.running_var) for n in learner.parts.forward_pass.norm_layers
    )
    assert mean.eq(0).all()
    assert var.eq(1).all()
    with learner.evaluating("ibn"):
        assert torch.equal(network[1].running_mean, mean)
        assert not torch.equal(network[3].running_mean, moved)


class Moves(ER):
    """Changes the network when a task ends."""

    def end_task(self, x: Tensor, y: Tensor) -> None:
        for p in self.context.network.parameters():
            p.data.mul_(1.5)


def test_statistics_are_estimated_again_after_the_end_of_a_task(
    make_learner: Make, teach: Teach, images: Dataset
) -> None:
    learner = teach(make_learner(Moves(), ibn=True))
    learner.predict(images.test_x)
    learner.end_task()
    after = learner.predict_proba(images.test_x)
    learner._predictor.forget()
    assert torch.equal(learner.predict_proba(images.test_x), after)


def test_a_frozen_layer_stays_so_when_the_caller_has_tested_the_network(
    make_learner: Make, make_net: Callable[..., nn.Module], teach: Teach
) -> None:
    network = make_net()
    layers = list(network.children())
    layers[1].eval()
    learner = make_learner("er", network)
    network.eval()
    teach(learner, tasks=1, steps=1)
    assert [layer.training for layer in layers] == [k != 1 for k in range(len(layers))]


# ---------------------------------------------------------------- the tools


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.BatchNorm1d(4))


def test_layers_without_running_statistics_are_left_out() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert batch_norms(network) == [network[0]]
    assert batch_norms(nn.Linear(2, 2)) == []


def test_a_layer_without_tracking_keeps_its_setting() -> None:
    layer = nn.BatchNorm1d(3)
    layer.track_running_stats = False  # the running statistics still exist
    with without_tracking([layer]):
        pass
    assert not layer.track_running_stats


def test_without_tracking_uses_batch_statistics_and_keeps_the_running_ones() -> None:
    network = net()
    network[2].eval()
    x = torch.randn(16, 3)
    want = copy.deepcopy(network)(x)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with without_tracking(batch_norms(network)):
        got = network(x)
    assert torch.equal(got, want)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    network(x)
    assert int(network[1].num_batches_tracked) == 1  # type: ignore[arg-type]


def test_modes_are_restored() -> None:
    network = net()
    network[1].eval()
    before = [m.training for m in network.modules()]
    with suppress(KeyError), evaluation_mode(network, [network[3]]):
        assert [m.training for m in network] == [False, False, False, True]
        raise KeyError
    assert [m.training for m in network.modules()] == before


def test_momenta_are_restored() -> None:
    layers = [nn.BatchNorm1d(2, momentum=0.3), nn.BatchNorm1d(2, momentum=None)]
    with suppress(KeyError), temporary_momentum(layers) as set_momentum:
        set_momentum(0.5)
        assert [n.momentum for n in layers] == [0.5, 0.5]
        raise KeyError
    assert [n.momentum for n in layers] == [0.3, None]


def test_layers_that_track_no_statistics_borrow_those_of_another_network() -> None:
    own, other = net(), net()
    other(5 + torch.randn(8, 3))
    (tracks, does_not), source = batch_norms(own), batch_norms(other)
    does_not.track_running_stats = False
    before = [(m.running_mean, m.running_var) for m in (tracks, does_not)]
    with suppress(KeyError), borrowed_averages([tracks, does_not], source):
        assert (tracks.running_mean, tracks.running_var) == before[0]
        assert does_not.running_mean is source[1].running_mean
        assert does_not.running_var is source[1].running_var
        raise KeyError
    for layer, (mean, var) in zip((tracks, does_not), before, strict=True):
        assert layer.running_mean is mean
        assert layer.running_var is var


def test_statistics_are_saved_and_restored_in_place() -> None:
    network = net()
    layers = batch_norms(network)
    addresses = [n.running_mean.data_ptr() for n in layers]  # type: ignore[union-attr]
    kept = RunningStatistics(layers)
    network(torch.randn(8, 3))
    changed = [n.running_mean.clone() for n in layers]  # type: ignore[union-attr]
    kept.restore()
    assert all(bool((n.running_mean == 0).all()) for n in layers)  # type: ignore[union-attr]
    assert all(int(n.num_batches_tracked) == 0 for n in layers)  # type: ignore[arg-type]
    network(torch.randn(8, 3))
    kept.save()
    network(torch.randn(8, 3))
    kept.restore()
    assert all(int(n.num_batches_tracked) == 1 for n in layers)  # type: ignore[arg-type]
    assert not torch.equal(layers[0].running_mean, changed[0])  # type: ignore[arg-type]
    assert [n.running_mean.data_ptr() for n in layers] == addresses  # type: ignore[union-attr]
    RunningStatistics([]).restore()


def test_statistics_are_copied_by_lists_of_one_dtype() -> None:
    stats = RunningStatistics([nn.BatchNorm2d(3), nn.BatchNorm1d(2)])
    assert [len({t.dtype for t in part}) for part in stats.live] == [
        1,
        1,
    ]  # otherwise copied one by one
