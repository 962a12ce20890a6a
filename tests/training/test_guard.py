"""One bad batch never ruins a learner: it is refused and undone, left out, or clipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner
from dualcba.training.guard import FACTOR

Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
METHODS = ["er", "er-cba", "er-dual-cba", "derpp-dual-cba", "clser", "er-ace", "icarl", "lucir"]
CLASSES = 4


def make(method: str = "er-dual-cba", **options: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    return Learner(
        net, (8,), CLASSES, method=method, dtype=torch.float32, buffer=40, batch_size=8, lr=0.1,
        **options,
    )  # fmt: skip


def batch(classes: tuple[int, int], k: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1000 * classes[0] + k)
    y = torch.tensor(classes).repeat(4)
    return torch.eye(8)[y] * 3 + 0.3 * torch.randn(8, 8, generator=rng), y


def teach(learner: Learner, steps: int = 40, *, start: int = 0) -> Learner:
    for classes in ((0, 1), (2, 3)):
        learner.new_task(classes)
        for k in range(steps):
            learner.observe(*batch(classes, start + k))
    return learner


def accuracy(learner: Learner) -> float:
    y = torch.arange(CLASSES).repeat(25)
    x = torch.eye(8)[y] * 3 + 0.3 * torch.randn(100, 8, generator=torch.Generator().manual_seed(5))
    proba = learner.predict_proba(x)
    assert proba.isfinite().all()
    return float((proba.argmax(1) == y).float().mean())


def test_a_loss_that_is_not_finite_is_refused(differ: Differ) -> None:
    """Gradients of the softmax are finite where the cross-entropy has overflowed."""
    learner = teach(make("er"), steps=2)
    learner.network.head.bias.detach().copy_(torch.tensor([3e38, -3e38, 0.0, 0.0]))
    before = learner.state_dict()
    with pytest.raises(FloatingPointError, match="the loss became inf at step 5 in task 2"):
        learner.observe(*batch((2, 3), 2))
    assert differ(before, learner.state_dict()) == []
    assert "inf" not in str(learner.parts.loss_monitor.values.tolist())


def with_outlier(value: float) -> tuple[Tensor, Tensor]:
    x, y = batch((2, 3), 999)
    x[3, 2] = value
    return x, y


@pytest.mark.parametrize("value", [1e6, -1e6, 1e20, 3e38])
@pytest.mark.parametrize("method", METHODS)
def test_an_outlier_is_refused_and_undone(method: str, value: float, differ: Differ) -> None:
    learner = teach(make(method))
    before = learner.state_dict()
    with pytest.raises(FloatingPointError, match=r"x has a value of .* at step 81 in task 2"):
        learner.observe(*with_outlier(value))
    assert differ(before, learner.state_dict()) == []
    assert accuracy(learner) > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_a_skipped_batch_was_never_there(method: str, differ: Differ) -> None:
    plain, disturbed = (teach(make(method, on_outlier="skip")) for _ in range(2))
    for value in (1e6, 1e20):
        disturbed.observe(*with_outlier(value))
    for k in range(5):
        for learner in (plain, disturbed):
            learner.observe(*batch((2, 3), 40 + k))
    assert disturbed.outliers == 2
    assert plain.outliers == 0
    changed = differ(plain.state_dict(), disturbed.state_dict())
    assert changed == ["tensors.guard.outliers"] or changed == ["guard.outliers"]


def test_a_clipped_batch_is_learnt_from_within_the_range_so_far(differ: Differ) -> None:
    learner, other = teach(make(on_outlier="clip")), teach(make(on_outlier="clip"))
    largest = float(learner.parts.guard.largest)
    learner.observe(*with_outlier(1e20))
    other.observe(*with_outlier(largest))
    assert learner.outliers == 1
    assert float(learner.parts.guard.largest) == largest
    assert learner.memory.x.abs().max() <= largest
    for name, weight in learner.network.state_dict().items():
        assert torch.equal(weight, other.network.state_dict()[name])
    assert accuracy(learner) > 0.9


def test_a_value_within_the_factor_is_no_outlier() -> None:
    learner = teach(make("er"))
    largest = float(learner.parts.guard.largest)
    learner.observe(*with_outlier(0.99 * FACTOR * largest))
    with pytest.raises(FloatingPointError):
        learner.observe(*with_outlier(1.01 * FACTOR * 0.99 * FACTOR * largest))


@pytest.mark.parametrize("on_outlier", ["raise", "skip", "clip"])
def test_a_first_batch_is_judged_by_what_it_does(on_outlier: str, differ: Differ) -> None:
    """There is nothing to compare its values with, but a statistic would be infinite."""
    learner = make(on_outlier=on_outlier)
    learner.new_task([2, 3])
    before = learner.state_dict()
    if on_outlier == "raise":
        with pytest.raises(FloatingPointError, match="statistic became inf at step 1"):
            learner.observe(*with_outlier(1e20))
        assert differ(before, learner.state_dict()) == []
    else:
        learner.observe(*with_outlier(1e20))
        assert learner.outliers == 1
    learner.observe(*batch((2, 3), 0))
    assert learner.step == 1


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "derpp"])
def test_a_rate_that_makes_weights_infinite_is_an_error_at_that_step(
    method: str, differ: Differ
) -> None:
    learner = teach(make(method), steps=5)
    with torch.no_grad():
        learner.parts.context.lr.fill_(1e38)
    before = learner.state_dict()
    with pytest.raises(FloatingPointError, match="at step 11 in task 2"):
        learner.observe(*batch((2, 3), 50))
    assert differ(before, learner.state_dict()) == []


def test_a_refused_step_can_be_saved_and_loaded(tmp_path: Any) -> None:
    learner = teach(make())
    with pytest.raises(FloatingPointError):
        learner.observe(*with_outlier(1e20))
    learner.save(tmp_path / "state")
    other = make()
    other.load(tmp_path / "state")
    assert float(other.parts.guard.largest) == float(learner.parts.guard.largest) > 0


def test_ibn_begins_from_fresh_statistics() -> None:
    learner = teach(make())
    before = learner.predict_proba(batch((0, 1), 7)[0])
    layer = learner.network.module[1]
    layer.running_var.fill_(torch.inf)
    layer.running_mean.fill_(torch.nan)
    learner._predictor.forget()
    assert torch.equal(learner.predict_proba(batch((0, 1), 7)[0]), before)


# ---------------------------------------------------------------- as on a GPU, where nothing waits


@pytest.mark.parametrize("value", [1e6, 1e20, 3e38])
@pytest.mark.parametrize("method", METHODS)
def test_without_waiting_network_and_adaptor_are_as_before(method: str, value: float) -> None:
    learner = teach(make(method))
    learner.parts.training_step.stay_on_device()
    before = learner.state_dict()["tensors"]
    learner.observe(*with_outlier(value))
    after = learner.state_dict()["tensors"]
    kept = ("network.", "adaptor", "method.", "sets.", "optimizer")
    changed = [k for k in before if k.startswith(kept) and not torch.equal(before[k], after[k])]
    assert changed == []
    assert all(t.isfinite().all() for t in after.values() if t.is_floating_point())
    assert learner.memory.x.abs().max() <= float(learner.parts.guard.largest) < 100
    with pytest.raises(FloatingPointError, match="at step 81 in task 2; the last finite loss was"):
        learner.check_finite()
    learner.check_finite()  # told once
    for k in range(30):
        learner.observe(*batch((2, 3), 100 + k))
    learner.check_finite()
    assert accuracy(learner) > 0.9


@pytest.mark.parametrize("on_outlier", ["skip", "clip"])
def test_without_waiting_outliers_are_counted(on_outlier: str) -> None:
    learner = teach(make(on_outlier=on_outlier))
    learner.parts.training_step.stay_on_device()
    before = learner.network.head.weight.clone()  # type: ignore[operator]
    learner.observe(*with_outlier(1e20))
    learner.check_finite()
    assert learner.outliers == 1
    assert torch.equal(before, learner.network.head.weight) == (on_outlier == "skip")


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("on_outlier", ["skip", "clip"])
@pytest.mark.parametrize("method", ["icarl", "lucir", "bic"])
def test_no_exemplar_is_an_outlier(method: str, on_outlier: str, on_device: bool) -> None:
    """The samples of a task are kept until its end, when the memory is filled with some of them."""
    learner = make(method, on_outlier=on_outlier)
    if on_device:
        learner.parts.training_step.stay_on_device()
    learner.new_task([0, 1])
    for k in range(20):
        x, y = batch((0, 1), k)
        if k == 10:
            x[3, 2] = 1e20
        learner.observe(x, y)
    learner.new_task([2, 3])
    assert learner.memory.x.abs().max() < 100
    for k in range(20):
        learner.observe(*batch((2, 3), k))
    assert learner.outliers == 1


@pytest.mark.parametrize("method", METHODS)
def test_without_waiting_a_copy_refuses_too(method: str) -> None:
    learner = teach(make(method))
    learner.parts.training_step.stay_on_device()
    other = copy.deepcopy(learner)
    before = other.state_dict()["tensors"]
    other.observe(*with_outlier(1e20))
    after = other.state_dict()["tensors"]
    kept = ("network.", "adaptor", "method.", "sets.", "optimizer")
    assert [k for k in before if k.startswith(kept) and not torch.equal(before[k], after[k])] == []
    with pytest.raises(FloatingPointError, match="at step 81 in task 2"):
        other.check_finite()
    learner.check_finite()


def test_an_infinite_first_outer_step_leaves_fresh_moments() -> None:
    """The adaptor's optimiser has no state before its first step; afterwards it is zero."""
    learner = make("er-dual-cba")
    learner.parts.training_step.stay_on_device()
    learner.new_task([0, 1])
    for k in range(5):
        learner.observe(*batch((0, 1), k))
    learner.new_task([2, 3])
    phi = {k: v.clone() for k, v in learner.adaptor.state_dict().items()}  # type: ignore[union-attr]
    learner.observe(*with_outlier(1e20))
    assert all(torch.equal(v, phi[k]) for k, v in learner.adaptor.state_dict().items())  # type: ignore[union-attr]
    optimizer = learner.parts.outer_loop.optimizer
    assert optimizer is not None
    assert all(not t.any() for state in optimizer.state.values() for t in state.values())


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("copied", [False, True])
def test_an_outlier_on_a_gpu(copied: bool, method: str, engine: str) -> None:
    learner = teach(make(method, device="cuda", engine=engine))
    learner = copy.deepcopy(learner) if copied else learner
    before = learner.state_dict()["tensors"]
    learner.observe(*with_outlier(1e20))
    after = learner.state_dict()["tensors"]
    kept = ("network.", "adaptor", "method.", "optimizer")
    names = [k for k in before if k.startswith(kept) and not k.endswith("batches_tracked")]
    assert [k for k in names if not torch.equal(before[k], after[k])] == []
    with pytest.raises(FloatingPointError, match="at step 81 in task 2"):
        learner.check_finite()
    for k in range(30):
        learner.observe(*batch((2, 3), 100 + k))
    learner.check_finite()
    assert accuracy(learner) > 0.9
