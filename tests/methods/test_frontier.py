"""LAS, MKD and the methods after them, each with all kinds of adaptors, in a learner."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import check_derivatives, double_targets, inside
from torch import nn

from dualcba import Dataset, Learner, Transform
from dualcba.adaptors.hypergradient import hypergradient
from dualcba.checks import check_learner
from dualcba.engine import Captured
from dualcba.losses import Batch
from dualcba.normalization.layers import convert_normalization

METHODS = ["las", "pcr", "gsa", "obc", "er+mkd", "er+ccl-dc"]
WRAPPED = ["derpp+mkd", "gsa+mkd", "er-ace+ccl-dc"]
DUAL = [f"{name}-dual-cba" for name in (*METHODS, *WRAPPED)]
Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


def tiny(method: str, norm: str = "bn", **given: Any) -> Callable[[int], Learner]:
    def make(seed: int) -> Learner:
        torch.manual_seed(seed)
        layers = (nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        network = convert_normalization(nn.Sequential(*layers, nn.Linear(36, 6)), norm)
        augment = Transform([0.5], [0.25], pad=1, flip=True)
        options = {"buffer": 24, "batch_size": 8, "transform": augment, "device": "cpu", **given}
        return Learner(network, (2, 5, 5), 6, method=method, seed=seed, **options)

    return make


CHECKS = {
    "": ("bn", ["shapes", "purity", "finite"]),
    "-cba": ("cn", ["gradient"]),
    "-dual-cba": ("adab2n", ["state"]),
    "-balanced-cba": ("bn", ["determinism"]),
}
"""The normalisation and the checks with each kind of adaptor."""


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_adaptor_passes_the_checks(method: str, kind: str) -> None:
    norm, checks = CHECKS[kind]
    given = {"forward": "concat", "ibn": True} if kind == "-dual-cba" else {}
    check_learner(tiny(method + kind, norm, **given), only=checks)


@pytest.mark.parametrize("method", WRAPPED)
def test_other_wrapped_methods_pass_too(method: str) -> None:
    check_learner(tiny(f"{method}-cba"), only=["gradient", "memory"])


@pytest.mark.parametrize("method", DUAL)
def test_derivatives_and_the_outer_gradient_are_those_of_autograd(
    method: str, make_learner: Make, teach: Teach
) -> None:
    learner = make_learner(method, width=8)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        double_targets(learner.method, new, mem)
        terms = learner.method.terms(new, mem)
        for k, term in enumerate(terms):
            s = torch.from_numpy(np.random.default_rng(k).normal(size=tuple(term.batch.z.shape)))
            with torch.enable_grad():
                check_derivatives(term, term.batch.z, s)
        assert learner.adaptor is not None
        adaptor, head = learner.adaptor.double(), deepcopy(learner.network.head).double()
        surrogate = getattr(learner.method, "surrogate", nn.Identity()).double()
        closed, unrolled = (
            hypergradient(adaptor, learner.method, new, mem, outer, head, 0.3, closed_form=form)
            for form in (True, False)
        )
        learner.adaptor.float()
        surrogate.float()
        for a, b in zip(closed, unrolled, strict=True):
            assert a is not None
            assert b is not None
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-12)
        assert any(bool((g != 0).any()) for g in closed if g is not None)

    seen = inside(learner, look)
    teach(learner, tasks=3)
    assert len(seen) == 6


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("method", DUAL)
@pytest.mark.filterwarnings("ignore:observed y is")
def test_a_refused_step_changes_nothing(
    method: str, on_device: bool, make_learner: Make, teach: Teach, differ: Differ, images: Dataset
) -> None:
    """On a GPU the samples of a refused batch still enter the memory, and draws were made."""
    learner = teach(make_learner(method))
    if on_device:
        learner.parts.training_step.stay_on_device()
    learner.observe(images.train_x[2:8], images.train_y[2:8])  # the classes are no longer news
    before, later = learner.state_dict(), learner.method.after_step
    forward = learner.method.loss
    learner.method.loss = lambda *args: forward(*args) * torch.nan  # type: ignore[assignment]
    if on_device:
        learner.observe(images.train_x[:8], images.train_y[:8])
    else:
        with pytest.raises(FloatingPointError, match="the loss became nan"):
            learner.observe(images.train_x[:8], images.train_y[:8])
    changed = differ(before, learner.state_dict())
    kept = [k for k in changed if not k.startswith(("meta", "memory", "losses", "sets.seen"))]
    assert kept == []
    assert on_device or changed == []
    assert later is not None


@pytest.mark.gpu
@pytest.mark.parametrize("method", [f"{name}-dual-cba" for name in WRAPPED])
def test_captured_is_eager(method: str, make_learner: Make, teach: Teach, exact: None) -> None:
    ends = []
    for engine in ("eager", "captured"):
        learner = teach(make_learner(method, device="cuda", engine=engine, precision="fp32"), 3, 8)
        ends.append(learner.state_dict()["tensors"])
    assert isinstance(learner.parts.engine, Captured)
    assert not learner.parts.engine.refused
    assert learner.parts.engine.entries
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-3, atol=1e-4, msg=name)
