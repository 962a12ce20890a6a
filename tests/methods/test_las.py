"""LAS against NumPy: the counts of labels, and the adjusted loss with and without a correction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies

from dualcba.experiments import Spec
from dualcba.losses import Batch
from dualcba.methods import check_options
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.las import LAS


def batches(bench: Any, *labels: list[int]) -> list[Batch]:
    out, start = [], 0
    for k, y in enumerate(labels):
        out.append(replace(bench.batch(y, seed=k), rows=slice(start, start + len(y))))
        start += len(y)
    return out


@pytest.mark.parametrize(("tau", "window"), [(1.0, 1), (0.5, 1), (1.0, 2), (2.0, 3)])
def test_loss_against_numpy(bench: Callable[..., Any], tau: float, window: int) -> None:
    method = LAS(tau=tau, window=window)
    own = bench(method)
    r = np.random.default_rng(3).normal(size=(7, 6))
    history = []
    for k in range(4):
        new, mem = batches(own, [0, 1, 1], [2, k, 2, 0])
        y = np.concatenate([new.y, mem.y])
        history.append(np.bincount(y, minlength=6))
        n = np.sum(history[-window:], axis=0)
        method.observe(new, [mem])
        z = np.concatenate([new.z.detach().numpy(), mem.z.detach().numpy()])
        want = cross_entropies(z + r + tau * np.log(n + 1e-50), y).mean()
        loss = method.loss(new, [mem], lambda b: b.z + torch.from_numpy(r)[b.rows])
        assert loss.item() == pytest.approx(want, rel=1e-6)


def test_without_adjustment_it_is_one_mean_over_all_samples(bench: Callable[..., Any]) -> None:
    method = LAS(tau=0.0)
    own = bench(method)
    new, mem = batches(own, [0, 1, 1], [2, 3, 2, 0, 5])
    method.observe(new, [mem])
    z = np.concatenate([new.z.detach().numpy(), mem.z.detach().numpy()])
    want = cross_entropies(z, np.concatenate([new.y, mem.y])).mean()
    assert method.loss(new, [mem], lambda b: b.z).item() == pytest.approx(want, rel=1e-9)


def test_unlabelled_samples_are_not_counted(bench: Callable[..., Any]) -> None:
    method = LAS()
    own = bench(method)
    (new,) = batches(own, [0, -1, 4, -1])
    FixMatch(method).observe(new, [])
    assert method.counts.sum(0).tolist() == [1, 0, 0, 0, 1, 0]
    (new,) = batches(own, [0, 1, 4, 4])  # labels behind the leading two are not used
    FixMatch(method, labelled=2, every=True).observe(new, [])
    assert method.counts.sum(0).tolist() == [1, 1, 0, 0, 0, 0]
    assert Spec(method="las", setting="semi-0.2").method == "las"


def test_the_window_is_in_the_state(make_learner: Any, teach: Any) -> None:
    learner = teach(make_learner("las", method_options={"window": 3}))
    state = learner.state_dict()
    counts = state["tensors"]["method.counts"]
    assert tuple(counts.shape) == (3, 6)
    assert counts.sum(1).tolist() == [16.0, 16.0, 16.0]
    state["tensors"]["method.counts"] = -counts
    with pytest.raises(ValueError, match=r"'method.counts' has .* expected no negative value"):
        learner.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0, expected a whole number of at least 1"),
        ({"window": 1.5}, "window is 1.5, expected a whole number of at least 1"),
        ({"window": 2**70}, f"window is {2**70}, expected a whole number of at most"),
        ({"tau": "1"}, "tau is '1', expected a number of at least 0"),
        ({"tau": 10**400}, r"tau is 10+, expected a number of at most 3e\+38"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LAS(**options)
    with pytest.raises(ValueError, match=next(iter(options))):
        check_options("las", options)
