"""SS-IL against NumPy: separated softmax, and distillation of each task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from frontier_helpers import divergences, log_softmax
from numpy.typing import NDArray
from torch import nn

from dualcba import Learner
from dualcba.losses import Batch, identity, total
from dualcba.memory import Balanced
from dualcba.methods.ss_il import SSIL
from dualcba.methods.teacher import distillation

Make = Callable[..., Any]
Floats = NDArray[np.float64]


def separated(z: Floats, y: list[int], new: list[int], old: list[int]) -> float:
    values = []
    for row, label in zip(z, y, strict=True):
        side = new if label in new else old
        values.append(np.log(np.exp(row[side]).sum()) - row[label])
    return float(np.mean(values))


def task_wise(z: Floats, target: Floats, tasks: list[list[int]]) -> float:
    """Return the mean over samples of the sum over tasks of KL at temperature 2."""
    each = [divergences(target[:, task], z[:, task], 2) / 4 for task in tasks]
    return float(np.sum(each, axis=0).mean())


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_loss(bench: Make, weight: float) -> None:
    b = bench(SSIL(weight=weight))
    b.begin([0, 1], [3, 4], [2])
    new, mem = b.batch([2, 2, 2], 1), b.batch([0, 1, 3, 2, 4], 2)
    want = 0.0
    for batch in (new, mem):
        z, y = batch.z.detach().numpy(), batch.y.tolist()
        target = b.method.teacher(batch.x)[0].numpy()
        want += separated(z, y, [2], [0, 1, 3, 4])
        want += weight * task_wise(z, target, [[0, 1], [3, 4]])
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_first_task_has_nothing_to_distil(bench: Make) -> None:
    b = bench(SSIL())
    b.begin([0, 1])
    new, mem = b.batch([0, 1], 1), b.batch([1, 0, 0], 2)
    want = sum(separated(x.z.detach().numpy(), x.y.tolist(), [0, 1], []) for x in (new, mem))
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_an_unannounced_class_has_a_finite_loss(bench: Make) -> None:
    b = bench(SSIL())
    b.begin([0, 1])
    loss = b.method.loss(b.batch([0, 5], 1), [], identity)
    assert loss.isfinite()


def test_no_gradient_flows_between_old_and_new(bench: Make) -> None:
    b = bench(SSIL(weight=0.0))
    b.begin([0, 1], [2, 3])
    new = b.batch([2, 3], 1)
    slope = torch.autograd.grad(b.method.loss(new, [], identity), new.z)[0]
    assert (slope[:, [0, 1, 4, 5]] == 0).all()
    assert (slope[:, [2, 3]] != 0).all()


def test_the_teacher_is_the_network_of_the_tasks_start(bench: Make) -> None:
    b = bench(SSIL())
    b.begin([0, 1])
    x = b.batch([0, 1]).x
    before = b.network(x)[0]
    b.sets.new_task([2, 3])
    b.method.begin_task()
    b.shake(5)
    assert torch.equal(b.method.teacher(x)[0], before)
    assert not torch.allclose(b.network(x)[0], before)
    assert not any(p.requires_grad for p in b.method.parameters())


def test_softmax_within_groups_far_apart() -> None:
    z = torch.tensor([[900.0, 901.0, -900.0, -903.0]], dtype=torch.float64)
    groups, every = torch.tensor([0, 0, 1, 1]), torch.ones(4, dtype=torch.bool)
    got = distillation(z, torch.zeros(1, 4), groups, every, 1.0).item()
    pairs = np.array([[0.0, 1.0], [0.0, -3.0]])
    assert got == pytest.approx((-np.log(2) - log_softmax(pairs).mean(1)).sum(), abs=1e-6)


def test_memory_is_class_balanced(bench: Make) -> None:
    assert isinstance(bench(SSIL()).memory, Balanced)


def test_terms_are_the_loss_with_its_derivatives(bench: Make) -> None:
    b = bench(SSIL(weight=3.0))
    b.begin([0, 1], [3], [2, 4])  # two new classes, which are not distilled
    new, mem = b.batch([2, 4, 2], 1), b.batch([0, 1, 3, 2, 4], 2)
    r = torch.from_numpy(np.random.default_rng(3).normal(size=(8, 6)))

    def adapt(batch: Batch) -> torch.Tensor:
        return batch.z + (r[:3] if batch is new else r[3:])

    terms = b.method.terms(new, [mem])
    loss = b.method.loss(new, [mem], adapt)
    assert total(terms, adapt).item() == pytest.approx(loss.item(), abs=1e-9)
    for term in terms:
        z = (term.batch.z + 0.1).detach().requires_grad_()
        (slope,) = torch.autograd.grad(term.value(z), z, create_graph=True)
        assert torch.allclose(term.gradient(z.detach()), slope, atol=1e-9)
        s = torch.from_numpy(np.random.default_rng(4).normal(size=z.shape))
        (turn,) = torch.autograd.grad((slope * s).sum(), z)
        assert torch.allclose(term.curvature(z.detach(), s), turn, atol=1e-9)


@pytest.mark.parametrize("sample_mean", [False, True])
def test_released_loss(bench: Make, sample_mean: bool) -> None:
    """The teacher passes all samples at once; a mean over samples weighs the batches by size."""
    b = bench(SSIL(weight=4.0, released=True))
    b.begin([0, 1], [3, 4], [2])
    b.method.sample_mean = sample_mean
    new, mem = b.batch([2, 2, 2], 1), b.batch([0, 1, 3, 4, 4], 2)
    want = 0.0
    for batch in (new, mem):
        z, y = batch.z.detach().numpy(), batch.y.tolist()
        target = b.method.teacher.network(batch.x)[0].numpy()
        share = len(y) / 8 if sample_mean else 1.0
        want += share * separated(z, y, [2], [0, 1, 3, 4])
        want += share * 4 * task_wise(z, target, [[0, 1], [3, 4]])
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)
    assert total(b.method.terms(new, [mem]), identity).item() == pytest.approx(want, abs=1e-6)


def test_released_memory_takes_samples_when_a_task_ends(bench: Make) -> None:
    b = bench(SSIL(released=True), size=6)
    assert b.method.rereads_task
    assert not b.method.stores_in_steps
    b.begin([0, 1])
    first, second = b.batch([0, 1] * 4, 1), b.batch([2] * 4, 2)
    b.method.end_task(first.x, first.y)
    assert torch.equal(b.memory.x[:6], first.x[[0, 2, 4, 1, 3, 5]])
    b.begin([2])
    b.method.end_task(second.x, second.y)
    assert b.memory.y[:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(b.memory.x[4:6], second.x[:2])


def test_released_teacher_has_batch_statistics() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))
    options = {"method_options": {"released": True}, "method": "ss-il", "forward": "concat"}
    learner = Learner(net, (1, 2, 2), 4, buffer=8, batch_size=4, **options)  # type: ignore[arg-type]
    layer = cast(nn.BatchNorm1d, learner.method.teacher.network.module[2])
    assert layer.training
    assert not layer.track_running_stats
