"""OBC against NumPy: two last layers, and the own step of the one that predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, inside, log_softmax, numbers
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.experiments import Spec
from dualcba.losses import Batch
from dualcba.methods import parse_method
from dualcba.methods.obc import OBC


@pytest.mark.parametrize(("loss_mean", "share"), [("batches", (1, 1)), ("samples", (4 / 7, 3 / 7))])
def test_loss_against_numpy(
    loss_mean: str, share: tuple[float, float], make_learner: Any, teach: Any
) -> None:
    learner = make_learner("obc-dual-cba", loss_mean=loss_mean, memory_batch=6)
    method = learner.method

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        weight, bias = (numbers(p) for p in method.surrogate.parameters())
        r = np.random.default_rng(0).normal(size=(14, 6))
        surrogate = numbers(new.h) @ weight.T + bias
        want = share[0] * cross_entropies(surrogate, numbers(new.y)).mean()
        want += share[1] * cross_entropies(numbers(mem[0].z) + r[8:], numbers(mem[0].y)).mean()
        method.surrogate.double()
        loss = method.loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
        method.surrogate.float()
        assert loss.item() == pytest.approx(want, rel=1e-6)

    seen = inside(learner, look)
    teach(learner, tasks=3)
    assert len(seen) == 6


@pytest.mark.filterwarnings("ignore:observed y is")
def test_the_last_layer_takes_a_step_of_its_own(
    make_learner: Any, teach: Any, images: Dataset
) -> None:
    learner = teach(make_learner("obc", method_options={"rate": 2.0}))
    method, steps = learner.method, []
    own = type(method).extra_step

    def spy(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        network, forward = learner.network, learner.parts.forward_pass
        again = forward.outputs(batch.x, batch.y)  # of the weights that are updated already
        torch.testing.assert_close(again[0], batch.z, rtol=1e-5, atol=1e-6)
        weight, bias = (numbers(p) for p in network.head.parameters())
        G = np.exp(log_softmax(numbers(batch.z)))
        G[np.arange(len(G)), numbers(batch.y)] -= 1
        G *= 2.0 * 0.05 / len(G)
        rest = [numbers(p) for p in network.parameters()][:-2]
        wanted.extend([*rest, weight - G.T @ numbers(batch.h), bias - G.sum(0)])
        steps.append(sorted(set(numbers(batch.y).tolist())))
        return own(method, batch)

    wanted: list[Any] = []
    method.extra_step = spy
    learner.observe(images.train_x[:8], images.train_y[:8])
    after = [numbers(p) for p in learner.network.parameters()]
    assert all((a == b).all() for a, b in zip(after[:-2], wanted[:-2], strict=True))
    for a, b in zip(after[-2:], wanted[-2:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert len(steps) == 1
    assert set(steps[0]) <= set(numbers(learner.memory.y).tolist())


def test_new_samples_do_not_train_the_last_layer(make_learner: Any, images: Dataset) -> None:
    learner = make_learner("obc")
    learner.new_task([0, 1])
    before = numbers(learner.network.head.weight)
    x, y = images.train_x[:2], images.train_y[:2]
    learner.observe(x, y)  # the memory is empty
    assert (numbers(learner.network.head.weight) == before).all()
    assert "method.surrogate.weight" in learner.state_dict()["tensors"]
    learner.observe(x, y)
    assert not (numbers(learner.network.head.weight) == before).all()


@pytest.mark.parametrize("rate", [1e30, 1e38])
@pytest.mark.filterwarnings("ignore:observed y is")
def test_a_step_of_the_last_layer_that_is_too_large_is_refused(
    make_learner: Any, teach: Any, images: Dataset, differ: Any, rate: float
) -> None:
    learner = teach(make_learner("obc", method_options={"rate": rate}, optimizer="adam"), tasks=0)
    learner.new_task([0, 1])
    learner.observe(images.train_x[:8], images.train_y[:8])  # the memory is empty
    before = learner.state_dict()
    with pytest.raises(FloatingPointError, match="the update of the last layer became too large"):
        learner.observe(images.train_x[8:16], images.train_y[8:16])
    assert differ(before, learner.state_dict()) == []
    assert all(p.isfinite().all() for p in learner.network.parameters())


def test_on_a_device_that_nobody_waits_for_it_is_left_out_and_reported(
    make_learner: Any, images: Dataset
) -> None:
    learner = make_learner("obc", method_options={"rate": 1e38})
    learner.parts.training_step.stay_on_device()  # as on a GPU
    learner.new_task(range(6))
    for k in (0, 8):
        learner.observe(images.train_x[k : k + 8], images.train_y[k : k + 8])
    assert all(p.isfinite().all() for p in learner.network.parameters())
    with pytest.raises(FloatingPointError, match="at step 2 in task 1"):
        learner.parts.loss_monitor.check(learner.step, [0])


def test_a_frozen_last_layer_is_refused() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    network[3].requires_grad_(False)
    with pytest.raises(ValueError, match="the network's last layer requires no gradient"):
        Learner(network, (4,), 2, method="obc")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'obc\+mkd', expected another base: mkd can wrap er"):
        parse_method("obc+mkd")
    with pytest.raises(ValueError, match=r"'semi-0.2' does not fit the method 'obc'"):
        Spec(method="obc", setting="semi-0.2")
    with pytest.raises(ValueError, match="rate is 'x', expected a number of at least 0"):
        OBC(rate="x")  # type: ignore[arg-type]


def test_the_further_draw_leaves_running_statistics_unchanged(
    make_learner: Any, teach: Any
) -> None:
    counts = []
    for method in ("obc", "er"):
        learner = teach(make_learner(method))
        layers = learner.parts.forward_pass.norm_layers
        counts.append([int(layer.num_batches_tracked) for layer in layers])
    assert counts[0] == counts[1]
