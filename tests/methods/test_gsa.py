"""GSA against NumPy: which samples are drawn, the sums of r, and both cross-entropies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, inside, log_softmax, numbers

from dualcba import Dataset, Learner, Transform
from dualcba.experiments import Spec
from dualcba.losses import Batch, identity
from dualcba.memory import Pool
from dualcba.methods.gsa import GSA, spread

C = 6


def masked(z: Any, classes: Any) -> Any:
    return np.where(classes, z, -np.inf)


def views(batch: Batch) -> list[Batch]:
    return [batch, batch.views["mirrored"]]


@pytest.mark.parametrize("adapted", [False, True])
def test_loss_against_numpy(adapted: bool, make_learner: Any, teach: Any) -> None:
    options = {"own": 5, "balanced": 13, "delay": 2}  # one of the 13 only fills up the draw
    learner = make_learner("gsa-dual-cba", method_options=options)
    method = learner.method
    tally = np.zeros((2, C))
    steps = 0

    def observe(new: Batch, mem: list[Batch]) -> None:
        nonlocal steps
        later = int(learner.task > 0)
        steps = 1 if learner.step == learner.task_starts[-1] else steps + 1
        seen = numbers(learner.class_sets.seen)
        for b in views(mem[1]) if mem else ():
            p, y = np.exp(log_softmax(masked(numbers(b.z), seen))), numbers(b.y)
            for i in np.flatnonzero(numbers(b.each)):
                for c in range(C):
                    tally[0, c] += later * (1 - p[i, c]) * (c == y[i])
                    tally[1, c] += later * p[i, c] * (c != y[i])
        GSA.observe(method, new, mem)

    method.observe = observe

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        own, both = mem
        sets = learner.class_sets
        new_classes, seen = numbers(sets.new), numbers(sets.seen)
        np.testing.assert_allclose(numbers(method.sums), tally, rtol=1e-4, atol=1e-5)
        r = np.ones(C)
        if steps > 2:
            r = np.divide(*tally, where=tally[1] > 0, out=np.ones(C))
        w = 2 / (1 + np.exp(1 - r))
        shift = numbers(torch.randn(1, C, dtype=torch.float64)) if adapted else np.zeros((1, C))
        N, B, drawn = [], [], numbers(own.each) > 0
        for k in range(2):
            a, b, c = views(new)[k], views(own)[k], views(both)[k]
            z = np.concatenate([numbers(a.z), numbers(b.z)[drawn]]) + shift
            y = np.concatenate([numbers(a.y), numbers(b.y)[drawn]])
            assert new_classes[y].all()
            N += list(cross_entropies(masked(z, new_classes), y))
            used = numbers(c.each) > 0
            z, y = numbers(c.z)[used] + shift, numbers(c.y)[used]
            B += list(w[y] * cross_entropies(masked(z, seen), y))
        want = np.mean(N) + 2 * np.mean(B)
        loss = method.loss(new, mem, lambda b: b.z + torch.from_numpy(shift))
        assert loss.item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner, tasks=3)
    assert len(seen) == 6
    assert tally.min() >= 0
    assert method.loss is not identity


@pytest.mark.filterwarnings("ignore:observed y is")
def test_every_step_against_numpy(make_learner: Any, images: Dataset) -> None:
    """From the first step on: the first task, the delay, and a class that nobody announced."""
    learner = make_learner("gsa", method_options={"delay": 2, "mirror": False})
    method, seen_steps = learner.method, []
    loss_of, observe = method.loss, method.observe
    steps = 0

    def count(new: Batch, mem: list[Batch]) -> None:
        nonlocal steps
        steps += 1
        observe(new, mem)

    def look(new: Batch, mem: list[Batch], adapt: Any) -> Any:
        loss = loss_of(new, mem, adapt)
        sets, y = learner.class_sets, numbers(new.y)
        first, seen = numbers(sets.new), numbers(sets.seen) | np.isin(np.arange(C), y)
        r = np.divide(*numbers(method.sums), where=numbers(method.sums)[1] > 0, out=np.ones(C))
        w = 2 / (1 + np.exp(1 - (r if steps > 2 else np.ones(C))))
        parts = [(numbers(b.z), numbers(b.y)) for b in (new, *map(drawn, mem))]
        z, y = (np.concatenate(part) for part in zip(*parts[:2], strict=True))
        want = cross_entropies(masked(z, first), y)[first[y]].mean()
        if learner.task:
            z, y = parts[2]
            want += 2 * (w[y] * cross_entropies(masked(z, seen), y)).mean()
        assert loss.item() == pytest.approx(want, rel=1e-5)
        seen_steps.append((learner.task, steps, bool(np.ptp(w) > 1e-3)))
        return loss

    method.loss, method.observe = look, count
    for task in ([0, 1], [2, 3], [4]):  # class 5 arrives in the last one
        learner.new_task(task)
        steps, classes = 0, torch.tensor([4, 5] if task == [4] else task)
        rows = torch.isin(images.train_y, classes).nonzero().flatten()
        for part in torch.split(rows[:40], 8):
            learner.observe(images.train_x[part], images.train_y[part])
    assert [(task, step) for task, step, _ in seen_steps] == [
        (task, step) for task in range(3) for step in range(1, 6)
    ]
    assert [differ for *_, differ in seen_steps] == [False] * 5 + ([False] * 2 + [True] * 3) * 2


def drawn(batch: Batch) -> Batch:
    """Return the samples of a draw that do not only fill it up."""
    assert batch.each is not None
    used = batch.each > 0
    return replace(batch, z=batch.z[used], y=batch.y[used])


def test_batches_are_drawn_by_tasks() -> None:
    """Two of five seen classes are old, and so are two fifths of B; the memory has none of 5."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, C))
    method = GSA(own=4, balanced=10, mirror=False)
    learner = Learner(network, (1, 2, 2), C, method=method, buffer=12, device="cpu")
    learner.class_sets.new_task([0, 1])
    learner.class_sets.new_task([3, 4, 5])
    learner.memory.y[:11] = torch.tensor([0, 3, 1, 1, 4, 1, 0, 0, 3, 1, 0])
    rng = np.random.default_rng(0)
    found: dict[int, int] = dict.fromkeys(range(20), 0)
    for _ in range(200):
        pool = Pool(learner.memory, torch.tensor([11]), torch.tensor([5, 3, 5, 4]), C)
        u = [torch.from_numpy(rng.random(n)) for n in (4, 10)]
        (own, own_each), (both, each) = method.choose(pool, u)
        assert sorted(own[own_each > 0].tolist()) == [1, 4, 8]  # all three of the task
        assert set(own.tolist()) == {1, 4, 8}  # what fills up the draw is of the task too
        assert own_each.sum() == pytest.approx(4)
        rows = both[each > 0].tolist()
        assert len(rows) == 10
        assert len(set(rows)) == 10
        labels = pool.labels[both].tolist()
        assert all(y < 2 for y in labels[:4])
        assert all(y >= 3 for y in labels[4:])
        for row in rows:
            found[row] += 1
    old, new = [0, 2, 3, 5, 6, 7, 9, 10], [1, 4, 8, 12, 13, 14, 15]
    assert [k for k, count in found.items() if count] == sorted(old + new)
    np.testing.assert_allclose([found[k] / 200 for k in old], 4 / 8, atol=0.12)
    np.testing.assert_allclose([found[k] / 200 for k in new], 6 / 7, atol=0.12)


def test_copies_of_one_sample_do_not_fill_up_a_draw() -> None:
    """They would have no batch statistics: the variance of each feature would be 0."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, C))
    method = GSA(own=6, balanced=10, mirror=False)
    learner = Learner(network, (1, 2, 2), C, method=method, buffer=12, device="cpu")
    learner.class_sets.new_task([0, 1, 2])
    learner.class_sets.new_task([3, 4, 5])
    learner.memory.y[:11] = torch.tensor([0, 1, 1, 1, 4, 2, 0, 0, 2, 1, 2])
    pool = Pool(learner.memory, torch.tensor([11]), torch.tensor([5, 3, 5]), C)
    u = [torch.from_numpy(np.random.default_rng(0).random(n)) for n in (6, 10)]
    (own, each), _ = method.choose(pool, u)
    assert own[each > 0].tolist() == [4]
    assert len(set(own[each == 0].tolist())) > 1
    assert own.max() < 11


def test_no_sample_is_chosen_where_there_is_none() -> None:
    rows, valid = spread(torch.zeros(5, dtype=torch.bool), torch.rand(3), 3)
    assert not valid.any()
    assert set(rows.tolist()) == {0}


@pytest.mark.filterwarnings("ignore:observed y is")
def test_a_new_sample_of_an_old_class_is_not_in_the_first_term(
    make_learner: Any, images: Any
) -> None:
    learner = make_learner("gsa")
    order = torch.argsort(images.train_y, stable=True)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for k in range(4):  # samples of all classes, announced or not
            rows = order[k::18]
            learner.observe(images.train_x[rows], images.train_y[rows])
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())
    learner.check_finite()


def test_boundaries_and_images_are_required() -> None:
    wanted = "boundaries is 'inferred', expected 'given': gsa needs task boundaries"
    with pytest.raises(ValueError, match=wanted):
        Spec(method="gsa", boundaries="inferred")
    with pytest.raises(ValueError, match=r"gsa\+mkd needs task"):
        Spec(method="gsa+mkd", boundaries="inferred")
    net = torch.nn.Linear(5, 4)
    with pytest.raises(ValueError, match=wanted):
        Learner(net, (1, 1, 5), 4, method="gsa", boundaries="inferred", device="cpu")
    with pytest.raises(ValueError, match=r"a sample for GSA is \(5,\), expected .* mirror=False"):
        Learner(net, (5,), 4, method="gsa", dtype=torch.float32, device="cpu")
    with pytest.raises(ValueError, match="own is 0, expected a whole number of at least 1"):
        GSA(own=0)
    with pytest.raises(ValueError, match="weight is 'x', expected a number of at least 0"):
        GSA(weight="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"gsa\+mkd needs task"):
        Learner(net, (1, 1, 5), 4, method="gsa+mkd", boundaries="inferred", device="cpu")
    assert GSA(mirror=False).make_views(Transform([0.0], [1.0])) == {}


def test_the_sums_are_in_the_state(make_learner: Any, teach: Any) -> None:
    learner = teach(make_learner("gsa"))
    state = learner.state_dict()
    assert state["tensors"]["method.steps"] == 5
    assert state["tensors"]["method.sums"].sum() > 0
    learner.new_task([4, 5])
    assert learner.method.steps == 0
    state["tensors"]["method.steps"] += 0.5
    with pytest.raises(ValueError, match=r"'method.steps' has 5.5, expected a whole number"):
        learner.load_state_dict(state)
    state["tensors"]["method.sums"] -= 100
    with pytest.raises(ValueError, match=r"'method.sums' has .* expected no negative value"):
        learner.load_state_dict(state)
