"""LUCIR against NumPy: cosines, margin ranking, imprinting, training of the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from dualcba import Learner
from dualcba.losses import identity
from dualcba.methods.lucir import LUCIR
from dualcba.nets.heads import CosineHead

Make = Callable[..., Any]
Floats = NDArray[np.float64]


def unit(h: Floats) -> Floats:
    return h / np.linalg.norm(h, axis=-1, keepdims=True)


def weights(b: Any) -> Floats:
    return np.asarray(b.method.head.weight.detach().numpy())


def ranking(h: Floats, y: list[int], w: Floats, old: list[int], new: list[int]) -> float:
    """Compute the ranking loss pair by pair."""
    values = []
    for row, label in zip(unit(h), y, strict=True):
        if label in old:
            cosines = unit(w) @ row
            rivals = np.sort(cosines[new])[::-1][:2]
            pairs = [max(0.0, 0.5 - cosines[label] + r) for r in rivals]
            values.append(sum(pairs) / 2)
    return float(np.mean(values)) if values else 0.0


def test_logits_are_scaled_cosines(bench: Make) -> None:
    b = bench(LUCIR(scale=7.0))
    batch = b.batch([0, 1, 2])
    want = 7 * unit(batch.h.detach().numpy()) @ unit(weights(b)).T
    assert np.allclose(batch.z.detach().numpy(), want, atol=1e-6)
    assert b.network.head.bias is None


@pytest.mark.parametrize("tasks", [2, 3])
def test_loss(bench: Make, logp: Any, tasks: int) -> None:
    b = bench(LUCIR())
    b.begin(*[[0, 1], [2], [3, 4, 5]][:tasks])
    fresh, old = ([2], [0, 1]) if tasks == 2 else ([3, 4, 5], [0, 1, 2])
    new, mem = b.batch(fresh * 2, 1), b.batch(old * 2, 2)
    want = 0.0
    for batch in (new, mem):
        z, h, y = batch.z.detach().numpy(), batch.h.detach().numpy(), batch.y.numpy()
        before = b.method.teacher(batch.x)[1].numpy()
        want -= logp(z)[np.arange(len(y)), y].mean()
        want += 5 * np.sqrt(tasks - 1) * (1 - (unit(h) * unit(before)).sum(1)).mean()
    want += ranking(mem.h.detach().numpy(), mem.y.tolist(), weights(b), old, fresh)
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_first_task_is_cross_entropy_alone(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1])
    new = b.batch([0, 1, 1])
    want = F.cross_entropy(new.z, new.y).item()
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_margin_ranking_of_one_new_class_has_a_finite_gradient(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1], [2])
    loss = b.method.loss(b.batch([2]), [b.batch([0, 1])], identity)
    for slope in torch.autograd.grad(loss, list(b.network.parameters())):
        assert slope.isfinite().all()


def test_a_class_is_imprinted_by_its_first_batch(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1])
    b.method.loss(b.batch([0, 1]), [], identity)
    first = weights(b).copy()
    with torch.no_grad():
        b.method.after_step(None)
    assert np.array_equal(weights(b), first)  # nothing is imprinted in the first task

    b.begin([2, 3])
    new = b.batch([2, 2, 0, 2], 1)
    before = weights(b).copy()
    b.method.loss(new, [], identity)
    with torch.no_grad():
        b.method.after_step(None)
    h = unit(new.h.detach().numpy())[[0, 1, 3]]
    want = unit(h.sum(0)) * np.linalg.norm(before[:2], axis=1).mean()
    assert np.allclose(weights(b)[2], want, atol=1e-6)
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(weights(b)[others], before[others])

    b.method.loss(b.batch([2, 3], 2), [], identity)  # 2 again, 3 for the first time
    with torch.no_grad():
        b.method.after_step(None)
    assert np.allclose(weights(b)[2], want, atol=1e-6)
    assert not np.allclose(weights(b)[3], before[3])


def test_tuning_moves_the_classifier_alone_and_helps(bench: Make) -> None:
    b = bench(LUCIR(), size=12)
    b.begin([0, 1])
    first = b.batch([0, 1] * 10, 1)
    head = [p.clone() for p in b.method.head.parameters()]
    b.method.end_task(first.x, first.y)
    assert all(map(torch.equal, head, b.method.head.parameters()))  # not after the first task
    b.begin([2, 3])
    data = b.batch([2, 3] * 10, 2)
    body = b.network.module[0].weight.clone()

    def loss() -> float:
        x, y, _ = b.memory.read(torch.arange(b.memory.filled))
        return F.cross_entropy(b.network(x)[0], y).item()

    b.method.epochs = 0
    b.method.end_task(data.x, data.y)
    before = loss()
    b.method.epochs = 20
    b.method.end_task(data.x[:0], data.y[:0])
    assert loss() < before
    assert torch.equal(b.network.module[0].weight, body)
    assert all(p.grad is None for p in b.network.parameters())


def test_classifier_is_trained_and_saved(make_learner: Callable[..., Learner], teach: Any) -> None:
    learner = teach(make_learner("lucir"))
    assert isinstance(learner.network.head, CosineHead)
    assert learner.network.head.scale.item() != 10.0
    assert any(name.endswith(".scale") for name in learner.state_dict()["tensors"])


def test_a_bare_linear_layer_is_refused_when_the_learner_is_made() -> None:
    """It has no parent in which its last layer could be replaced."""
    with pytest.raises(ValueError, match="is a bare linear layer that another head replaces"):
        Learner(nn.Linear(5, 4), (5,), 4, method="lucir", dtype=torch.float32)
    inside = nn.Sequential(nn.Linear(5, 4))
    Learner(inside, (5,), 4, method="lucir", dtype=torch.float32, buffer=8)


def test_frozen_weights_of_old_classes_get_no_gradient(bench: Make) -> None:
    free, frozen = bench(LUCIR(scale=4.0)), bench(LUCIR(scale=4.0, frozen=True))
    slopes, losses = [], []
    for b in (free, frozen):
        b.begin([0, 1], [2, 3])
        loss = b.method.loss(b.batch([2, 3, 3], 1), [b.batch([0, 1], 2)], identity)
        losses.append(loss.item())
        slopes.append(torch.autograd.grad(loss, list(b.network.parameters()), allow_unused=True))
    assert losses[0] == pytest.approx(losses[1])
    names = [name for name, _ in free.network.named_parameters()]
    for name, one, two in zip(names, *slopes, strict=True):
        if name.endswith("weight") and one.shape == (6, 4):  # the head
            assert (one[:2] != 0).any()
            assert (two[:2] == 0).all()
            one, two = one[2:], two[2:]
        assert torch.allclose(one, two, atol=1e-6), name


def test_tuning_of_frozen_heads_changes_the_newest_weights_alone(bench: Make) -> None:
    b = bench(LUCIR(frozen=True), size=12)
    b.begin([0, 1])
    first = b.batch([0, 1] * 10, 1)
    b.method.end_task(first.x, first.y)
    b.begin([2, 3])
    data = b.batch([2, 3] * 10, 2)
    weight, scale = weights(b).copy(), b.method.head.scale.item()
    b.method.end_task(data.x, data.y)
    changed = (weights(b) != weight).any(1)
    assert changed.tolist() == [False, False, True, True, False, False]
    assert b.method.head.scale.item() == scale


def test_the_rate_of_the_tuning_falls_after_some_batches(bench: Make) -> None:
    b = bench(LUCIR(drop=5))
    b.method.epochs = 3
    shares = b.method._rate_shares(7)  # two batches of four
    assert shares.flatten().tolist() == pytest.approx([1] * 5 + [0.1])
    b = bench(LUCIR())
    assert (b.method._rate_shares(7) == 1).all()
