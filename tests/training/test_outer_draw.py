"""The outer batch that is balanced over the classes of memory and current batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba import Learner, Transform
from dualcba.checks import check_learner
from dualcba.losses import Batch
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch

Make = Callable[..., Learner]
Teach = Callable[..., Learner]


def outer_batches(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The outer batches of the steps to come."""
    seen: list[Batch] = []
    step = learner.parts.outer_loop.step

    def spy(new: Batch, mem: Any, outer_batch: Batch) -> None:
        seen.append(outer_batch)
        step(new, mem, outer_batch)

    monkeypatch.setattr(learner.parts.outer_loop, "step", spy)
    return seen


@pytest.mark.parametrize("method", ["er-balanced-cba", "er-cba", "derpp-dual-cba", "rar-dual-cba"])
def test_new_classes_are_in_the_first_outer_batch_of_a_task(
    method: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    learner = teach(make_learner(method, outer_draw="balanced"), tasks=1)
    seen = outer_batches(learner, monkeypatch)
    learner.new_task([2, 3])
    learner.observe(*make_batches(3)[1][0])
    assert torch.bincount(seen[0].y, minlength=6).tolist() == [2, 2, 2, 2, 0, 0]
    assert not seen[0].z.requires_grad


def test_todays_draw_has_none_of_them(
    make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    learner = teach(make_learner("er-dual-cba"), tasks=1)
    seen = outer_batches(learner, monkeypatch)
    learner.new_task([2, 3])
    learner.observe(*make_batches(3)[1][0])
    assert set(seen[0].y.tolist()) == {0, 1}


def test_samples_of_the_current_batch_have_their_own_raw_logits_as_stored_ones(
    make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    learner = teach(make_learner("derpp-balanced-cba"), tasks=1)
    seen = outer_batches(learner, monkeypatch)
    learner.new_task([2, 3])
    learner.observe(*make_batches(3)[1][0])
    batch = seen[0]
    new = batch.y >= 2
    assert torch.equal(batch.columns["raw_logits"][new], batch.z[new])
    assert not torch.equal(batch.columns["raw_logits"][~new], batch.z[~new])


def test_they_are_augmented_a_second_time(
    make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any, images: Any
) -> None:
    x, y = make_batches(3)[1][0]
    for transform, again in ((images.transform(), True), (Transform([0.0], [1.0]), False)):
        learner = teach(make_learner("er-balanced-cba", transform=transform), tasks=1)
        seen = outer_batches(learner, monkeypatch)
        inner: list[Tensor] = []
        method = learner.method
        terms = method.terms
        monkeypatch.setattr(
            method, "terms", lambda n, m, t=terms, i=inner: i.append(n.x) or t(n, m)
        )
        learner.new_task([2, 3])
        learner.observe(x, y)
        drawn = seen[0].x[seen[0].y >= 2]
        same = (drawn[:, None] == inner[0][None]).flatten(2).all(2).any(1)
        assert bool(same.all()) != again


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.filterwarnings("ignore:observed y is")
def test_a_small_outer_batch(batch_size: int, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-balanced-cba", batch_size=batch_size, outer_every=1)
    for classes, batches in zip(([0, 1], [2, 3]), make_batches(2, size=1), strict=False):
        learner.new_task(classes)
        for x, y in batches:
            learner.observe(x, y)
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())


@pytest.mark.parametrize("base", [ER, DERpp])
@pytest.mark.parametrize("labelled", [0, 2])
@pytest.mark.filterwarnings("ignore:observed y is")
def test_samples_without_a_label_are_not_drawn(
    base: Any, labelled: int, make_learner: Make, make_batches: Any, monkeypatch: Any
) -> None:
    learner = make_learner(FixMatch(base(), labelled=labelled), adaptor="balanced-cba")
    seen = outer_batches(learner, monkeypatch)
    for classes, batches in zip(([0, 1], [2, 3]), make_batches(2), strict=False):
        learner.new_task(classes)
        for x, y in batches:
            learner.observe(x, torch.where(torch.arange(len(y)) < 2, y, -1))
    assert seen
    assert all(bool((batch.y >= 0).all()) for batch in seen)


@pytest.mark.parametrize("draw", ["memory", "balanced"])
def test_the_frequencies_are_those_of_the_draw(
    draw: str, make_learner: Make, teach: Teach, make_batches: Any, monkeypatch: Any
) -> None:
    given = {"outer_draw": draw, "outer_loss": "adjusted"}
    learner = teach(make_learner("er-balanced-cba", buffer=200, **given), tasks=1, steps=3)
    seen = outer_batches(learner, monkeypatch)
    learner.new_task([2, 3])
    stored = torch.bincount(learner.memory.y[:24], minlength=6)
    learner.observe(*make_batches(3)[1][0])
    want = stored if draw == "memory" else torch.tensor([8.0, 8, 8, 8, 0, 0])  # of 24 + 8
    assert seen[0].frequencies is not None
    assert seen[0].frequencies.tolist() == want.tolist()


def test_a_learner_with_all_ingredients_keeps_the_contract(make_net: Any, images: Any) -> None:
    """Its state too holds everything that the next step depends on."""
    given = {"outer_loss": "adjusted", "targets": "raw", "strength": True, "prior": True}
    given |= {"outer_draw": "balanced", "outer_warmup": 2, "width": 8, "counts": True}
    given |= {"method": "derpp-balanced-cba", "transform": images.transform()}

    def make(seed: int) -> Learner:
        net = make_net(seed)
        return Learner(net, (3, 8, 8), 6, buffer=24, batch_size=8, seed=seed, device="cpu", **given)

    check_learner(make, skip=["time"])


def test_boundaries_may_be_inferred(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-balanced-cba", boundaries="inferred", outer_every=1)
    for batches in make_batches(3):
        for x, y in batches:
            learner.observe(x, y)
    assert learner.task > 0
