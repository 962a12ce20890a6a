"""CCL-DC against NumPy: a chain of views, the losses of both networks, and their mean."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, divergences, in_double, inside, numbers
from torch import nn

from dualcba import Dataset, Learner
from dualcba.losses import Batch, identity
from dualcba.methods.ccl_dc import CCLDC, fresh_copy
from dualcba.methods.er import ER
from dualcba.methods.er_ace import ERACE

VIEWS = ("v0", "v1", "v2", "v3")
LESSONS = (("v3", "v3"), ("v1", "v0"), ("v2", "v1"), ("v3", "v2"))


def loss_of(own: Any, teacher: Any, y: Any, r: Any, n: int, weight: float) -> float:
    """Return the loss around ER; logits by view, n samples being new."""
    labels = [
        cross_entropies((z + shift)[part], y[part]).mean()
        for z, shift in zip(own.values(), r, strict=True)
        for part in (slice(n), slice(n, None))
    ]
    lessons = [divergences(teacher[a], own[b], 4.0).mean() for a, b in LESSONS]
    return sum(labels) / 2 + weight * sum(lessons)


@pytest.mark.parametrize("peers", [1, 2])
def test_loss_against_numpy(peers: int, make_learner: Any, teach: Any) -> None:
    learner = make_learner("er+ccl-dc-dual-cba", method_options={"peers": peers, "weight": 1.5})
    method = learner.method

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        batches = [new, *mem]
        y = np.concatenate([numbers(b.y) for b in batches])
        own = {"x": np.concatenate([numbers(b.z) for b in batches])}
        own |= {v: np.concatenate([numbers(b.views[v].z) for b in batches]) for v in VIEWS}
        r = np.random.default_rng(1).normal(size=(5, 16, 6))
        want = loss_of(own, own, y, r, 8, 1.5)
        if peers == 2:
            method.peer.train()
            inputs = [[b.x for b in batches], *([b.views[v].x for b in batches] for v in VIEWS)]
            z = [np.concatenate([numbers(method.peer(x)[0]) for x in pair]) for pair in inputs]
            other = dict(zip(own, z, strict=True))
            want = loss_of(own, other, y, r, 8, 1.5) + loss_of(other, own, y, r, 8, 1.5)
        flat = torch.from_numpy(r.reshape(-1, 6))
        loss = method.loss(new, mem, lambda b: b.z + flat[b.rows])
        assert loss.item() == pytest.approx(want, rel=1e-4)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


@pytest.mark.parametrize("peers", [1, 2])
def test_samples_that_fill_up_a_draw_count_in_no_mean(
    peers: int, make_learner: Any, teach: Any
) -> None:
    options = {"peers": peers, "weight": 1.5}
    learner = make_learner("gsa+ccl-dc-dual-cba", method_options=options)
    method = learner.method

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        networks = [[new, *mem]]
        if peers == 2:
            networks.append(method._peer_batches(networks[0]))
        used = [np.ones(8, bool), *(numbers(b.each) > 0 for b in mem)]
        assert not all(part.all() for part in used)
        want = 0.0
        for own, teacher in zip(networks, networks[::-1], strict=True):
            for view in [own, *([b.views[v] for b in own] for v in VIEWS)]:
                want += method.method.loss(view[0], view[1:], identity).item() / 2
            for a, b in LESSONS:
                z = [
                    np.concatenate(
                        [numbers(v.views[n].z)[u] for v, u in zip(net, used, strict=True)]
                    )
                    for net, n in ((teacher, a), (own, b))
                ]
                want += 1.5 * divergences(*z, 4.0).mean()
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


def test_each_view_starts_from_the_one_before(make_learner: Any, teach: Any) -> None:
    learner = make_learner("er+ccl-dc-cba")
    views = learner.parts.forward_pass.views
    assert views["v1"].area == (0.6, 1.0)
    for strong in (views["v2"].randaugment, views["v3"].randaugment):
        assert (strong.operations, strong.magnitudes) == (3, (15,))
    made: dict[str, tuple[Any, Any]] = {}

    def spied(name: str, augment: Any) -> Any:
        def spy(x: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = augment(x, params)
            made[name] = x.clone(), out.clone()
            return out

        return spy

    for name in VIEWS[1:]:
        views[name].augment = spied(name, views[name].augment)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        raw = torch.cat([b.views["v0"].x for b in (new, *mem)])
        assert torch.equal(views["v0"].normalize(made["v1"][0]), raw)
        for before, after in (("v1", "v2"), ("v2", "v3")):
            assert torch.equal(made[before][1], made[after][0])
            assert not torch.equal(*made[after])

    seen = inside(learner, look)
    teach(learner)
    assert seen


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
def test_predictions_are_the_mean_of_both_networks(
    statistics: str, make_learner: Any, teach: Any, images: Dataset, differ: Any
) -> None:
    """IBN estimates the statistics of each: as if it were the network of a learner of its own."""
    given = {"ibn": statistics == "ibn", "ibn_augment": False}
    learner = teach(make_learner("er+ccl-dc", **given))
    before = learner.state_dict()
    answers = learner.predict_proba(images.test_x)
    assert differ(before, learner.state_dict()) == []
    logits = []
    for network in (learner.network, learner.method.peer):
        alone = make_learner("er", network=deepcopy(network.module), **given)
        alone.memory.load_state_dict(learner.memory.state_dict())
        logits.append(alone.predict_proba(images.test_x).log())
    want = torch.stack(logits).mean(0).softmax(1)
    torch.testing.assert_close(answers, want, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits[0], logits[1], atol=1e-2)


@pytest.mark.parametrize("readout", ["ncm", "both", "lda", "both-lda", "debiased"])
def test_read_outs_have_the_mean_logits_and_the_first_networks_features(
    readout: str, make_learner: Any, teach: Any, images: Dataset
) -> None:
    learner = teach(make_learner("er+ccl-dc", readout=readout))
    answers = learner.predict_proba(images.test_x)
    torch.testing.assert_close(learner.snapshot().predict_proba(images.test_x), answers)
    x = learner.parts.context.transform(images.test_x)
    with torch.no_grad(), learner.evaluating("bn"):
        (z, h), (other, _) = learner.network(x), learner.method.peer(x)
        outputs = learner.method.outputs(x)
    torch.testing.assert_close(outputs, ((z + other) / 2, h))


@pytest.mark.parametrize(("base", "view"), [("gsa", "mirrored"), ("pcr", "raw")])
def test_the_second_network_sees_the_views_of_the_wrapped_method(
    base: str, view: str, make_learner: Any, teach: Any
) -> None:
    learner = make_learner(f"{base}+ccl-dc-dual-cba")
    method = learner.method

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        batches = [new, *mem]
        assert list(new.views) == [view, *VIEWS]
        method.peer.train()
        for own, other in zip(batches, method._peer_batches(batches), strict=True):
            assert list(other.views) == list(own.views)
            z = numbers(method.peer(own.views[view].x)[0])
            np.testing.assert_allclose(numbers(other.views[view].z), z, rtol=1e-4, atol=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert seen


def test_both_networks_learn_and_start_differently(make_learner: Any, teach: Any) -> None:
    learner = make_learner("er+ccl-dc")
    first, second = learner.network, learner.method.peer
    start = [numbers(p).copy() for p in second.parameters()]
    assert not np.allclose(start[0], numbers(next(first.parameters())))
    assert all(
        (numbers(p) == numbers(q)).all()
        for p, q in zip(fresh_copy(first).parameters(), second.parameters(), strict=True)
    )
    teach(learner)
    assert not any((numbers(p) == s).all() for p, s in zip(second.parameters(), start, strict=True))
    counts = {int(m.num_batches_tracked) for n in (first, second) for m in n.modules()
              if hasattr(m, "num_batches_tracked")}  # fmt: skip
    assert len(counts) == 1  # both have running statistics of all views
    assert in_double(Batch(*[torch.zeros(1, 1)] * 4)).z.dtype == torch.float64


def test_frozen_layers_are_the_same_in_both_networks() -> None:
    """Weights that never learn, and statistics that stay, would be random for good."""
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    network = nn.Sequential(*layers, nn.Linear(36, 6))
    network[0].requires_grad_(False)
    network[1].running_mean.fill_(3.0)  # type: ignore[operator, union-attr]
    network[1].eval()
    learner = Learner(network, (3, 5, 5), 6, method="er+ccl-dc", device="cpu")
    assert isinstance(learner.method, CCLDC)
    first, second = learner.network.state_dict(), learner.method.peer.state_dict()
    differ = {name for name, value in first.items() if not torch.equal(value, second[name])}
    assert differ == {"module.4.weight", "module.4.bias"}


def test_a_cosine_head_is_another_one_in_the_second_network() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(75, 6))
    learner = Learner(network, (3, 5, 5), 6, method="er+ccl-dc", head="cosine", device="cpu")
    assert isinstance(learner.method, CCLDC)
    heads = learner.network.head, learner.method.peer.head
    assert not torch.equal(heads[0].weight, heads[1].weight)  # type: ignore[arg-type]
    assert heads[0].scale == heads[1].scale


def test_options() -> None:
    assert (CCLDC(ER()).weight, CCLDC(ERACE()).weight, CCLDC(ERACE(), weight=3).weight) == (2, 1, 3)
    for options, message in (
        ({"peers": 3}, "peers is 3, expected 1 or 2"),
        ({"peers": True}, "peers is True, expected 1 or 2"),
        ({"temperature": "4"}, "temperature is '4', expected a number above 0"),
        ({"operations": 1.5}, "operations is 1.5, expected a whole number of at least 1"),
        ({"magnitude": 1.5}, "magnitude is 1.5, expected 0 to 30"),
        ({"temperature": 0.0}, "temperature is 0.0, expected a number above 0"),
        ({"magnitude": 31}, "magnitude is 31, expected 0 to 30"),
        ({"weight": -1}, "weight is -1, expected a number of at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            CCLDC(ER(), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a sample for RandAugment is .*float32 of shape \(5,\)"):
        Learner(torch.nn.Linear(5, 4), (5,), 4, method="er+ccl-dc", dtype=torch.float32)
