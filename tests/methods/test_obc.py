"""OBC against NumPy: two last layers, and the own step of the one that predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, inside, log_softmax, numbers

from dualcba import Dataset
from dualcba.experiments import Spec
from dualcba.losses import Batch
from dualcba.methods import parse_method
from dualcba.methods.obc import OBC


def test_loss_against_numpy(make_learner: Any, teach: Any) -> None:
    learner = make_learner("obc-dual-cba")
    method = learner.method

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        weight, bias = (numbers(p) for p in method.surrogate.parameters())
        r = np.random.default_rng(0).normal(size=(16, 6))
        want = cross_entropies(numbers(new.h) @ weight.T + bias, numbers(new.y)).mean()
        want += cross_entropies(numbers(mem[0].z) + r[8:], numbers(mem[0].y)).mean()
        method.surrogate.double()
        loss = method.loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
        method.surrogate.float()
        assert loss.item() == pytest.approx(want, rel=1e-6)

    seen = inside(learner, look)
    teach(learner, tasks=3)
    assert len(seen) == 6


def test_the_last_layer_takes_a_step_of_its_own(
    make_learner: Any, teach: Any, images: Dataset
) -> None:
    learner = teach(make_learner("obc", method_options={"rate": 2.0}))
    method, steps = learner.method, []
    own = type(method).extra_step

    def spy(batch: Batch) -> None:
        network, forward = learner.network, learner.parts.forward_pass
        again = forward.outputs(batch.x, batch.y)  # of the weights that are updated already
        torch.testing.assert_close(again[0], batch.z, rtol=1e-5, atol=1e-6)
        before = [numbers(p) for p in network.parameters()]
        own(method, batch)
        after = [numbers(p) for p in network.parameters()]
        G = np.exp(log_softmax(numbers(batch.z)))
        G[np.arange(len(G)), numbers(batch.y)] -= 1
        G *= 2.0 * 0.05 / len(G)
        np.testing.assert_allclose(after[-2], before[-2] - G.T @ numbers(batch.h), atol=1e-6)
        np.testing.assert_allclose(after[-1], before[-1] - G.sum(0), atol=1e-6)
        assert all((a == b).all() for a, b in zip(after[:-2], before[:-2], strict=True))
        steps.append(sorted(set(numbers(batch.y).tolist())))

    method.extra_step = spy
    learner.observe(images.train_x[:8], images.train_y[:8])
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


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown base in the method 'obc\+mkd' 'obc'"):
        parse_method("obc+mkd")
    with pytest.raises(ValueError, match=r"'semi-0.2' does not fit the method 'obc'"):
        Spec(method="obc", setting="semi-0.2")
    with pytest.raises(ValueError, match="rate is 'x', expected a number of at least 0"):
        OBC(rate="x")  # type: ignore[arg-type]
