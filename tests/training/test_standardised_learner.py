"""Learners that standardise their inputs: state, undo, growth, the path of a GPU, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba import Learner, Transform
from dualcba.nets import MLP

Make = Callable[..., Learner]
SCALES = np.array([1e-3, 1.0, 1e4, 1.0, 0.0], dtype=np.float32)
METHODS = ["er", "derpp-dual-cba", "clser-cba", "er+mkd", "icarl"]


def batches(tasks: int = 2, steps: int = 4, seed: int = 0) -> list[list[tuple[Tensor, Tensor]]]:
    rng, found = np.random.default_rng(seed), []
    for task in range(tasks):
        y = rng.integers(2 * task, 2 * task + 2, (steps, 4))
        x = (np.eye(5)[y] + rng.normal(0, 0.1, (steps, 4, 5)) + 3) * SCALES
        found.append(list(zip(torch.tensor(x, dtype=torch.float32), torch.tensor(y), strict=True)))
    return found


def learn(learner: Learner, stream: list[list[tuple[Tensor, Tensor]]], first: int = 0) -> None:
    for k, part in enumerate(stream):
        learner.new_task([2 * (first + k), 2 * (first + k) + 1])
        for x, y in part:
            learner.observe(x, y)


def inputs(learner: Learner) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = learner.state_dict()["tensors"]
    return {k: v for k, v in tensors.items() if k.startswith("inputs.")}


@pytest.mark.parametrize("method", METHODS)
def test_a_state_continues_bit_for_bit(method: str, vectors: Make, differ: Any) -> None:
    straight, other = (vectors(method=method, standardise=True) for _ in range(2))
    stream = batches()
    learn(straight, stream[:1])
    other.load_state_dict(straight.state_dict())
    for one in (straight, other):
        learn(one, stream[1:], first=1)
    assert differ(straight.state_dict(), other.state_dict()) == []
    x = torch.cat([x for part in stream for x, _ in part])
    assert torch.equal(straight.predict_proba(x), other.predict_proba(x))
    assert int(inputs(straight)["inputs.count"]) == 32
    assert torch.allclose(inputs(straight)["inputs.mean"], x.double().mean(0))


def test_the_memory_stores_raw_samples(vectors: Make) -> None:
    learner, stream = vectors(standardise=True), batches()
    learn(learner, stream)
    raw = {tuple(row) for part in stream for x, _ in part for row in x.tolist()}
    assert {tuple(row) for row in learner.memory.x[: learner.memory.filled].tolist()} <= raw


@pytest.mark.parametrize("options", [{}, {"while_empty": "store"}])
@pytest.mark.parametrize("where", ["forward_pass.inner_batches", "context.memory.write"])
def test_a_failed_step_is_undone(
    where: str, options: dict[str, Any], vectors: Make, differ: Any, monkeypatch: Any
) -> None:
    learner = vectors(method="derpp", standardise=True, **options)
    learner.new_task([0, 1])
    for x, y in batches()[0]:
        before, scale = learner.state_dict(), learner.parts.context.transform.scale.clone()
        *path, name = where.split(".")
        owner: Any = learner.parts
        for part in path:
            owner = getattr(owner, part)

        def fail(*_: Any) -> None:
            raise MemoryError("no memory left")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            if where == "context.memory.write":  # after the update of the weights
                theta = [p.detach() for p in learner.network.parameters()]
                learner.parts.training_step.backup.weights = theta
            with pytest.raises(MemoryError):
                learner.observe(x, y)
        assert differ(before, learner.state_dict()) == []
        assert torch.equal(scale, learner.parts.context.transform.scale)
        learner.observe(x, y)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_refused_step_leaves_the_statistics(on_device: bool, vectors: Make) -> None:
    learner, stream = vectors(standardise=True, on_outlier="skip"), batches()
    if on_device:  # as on a GPU
        learner.parts.training_step.stay_on_device()
    learn(learner, stream[:1])
    before, scale = inputs(learner), learner.parts.context.transform.scale.clone()
    x, y = stream[0][0]
    learner.observe(torch.where(x == x.max(), x * 1e9, x), y)  # its feature has the largest values
    assert learner.outliers == 1
    assert all(torch.equal(before[k], v) for k, v in inputs(learner).items())
    assert torch.equal(scale, learner.parts.context.transform.scale)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_feature_that_was_zero_may_have_any_scale(on_device: bool, vectors: Make) -> None:
    learner, stream = vectors(standardise=True, on_outlier="skip"), batches()
    if on_device:
        learner.parts.training_step.stay_on_device()
    learn(learner, stream[:1])
    x, y = stream[0][0]
    largest = float(x.abs().max())
    for k in (1, 4):  # the last feature has been 0, the second has not
        changed = x.clone()
        changed[0, k] = 1e5 * largest
        learner.observe(changed, y)
        assert learner.outliers == 1
    largest_of_each = learner.state_dict()["tensors"]["guard.largest"]
    assert largest_of_each[4] == 1e5 * largest
    assert largest_of_each[1] < 10


@pytest.mark.parametrize("on_device", [False, True])
def test_outliers_are_clipped_to_the_scale_of_their_feature(on_device: bool, vectors: Make) -> None:
    learner, stream = vectors(standardise=True, on_outlier="clip"), batches()
    if on_device:
        learner.parts.training_step.stay_on_device()
    learn(learner, stream[:1])
    x, y = stream[0][0]
    mean = inputs(learner)["inputs.mean"]
    learner.observe(torch.where(torch.arange(5) == 0, x * 1e12, x), y)
    assert learner.outliers == 1
    assert abs(inputs(learner)["inputs.mean"][0] - mean[0]) < 0.01


def test_the_path_of_a_gpu_takes_the_same_steps(vectors: Make, differ: Any) -> None:
    plain, deferred = (vectors(method="er-dual-cba", standardise=True) for _ in range(2))
    deferred.parts.training_step.stay_on_device()
    for learner in (plain, deferred):
        learn(learner, batches())
    assert differ(plain.state_dict(), deferred.state_dict()) == []


def test_squares_of_large_values_do_not_count_as_large_updates(vectors: Make) -> None:
    learner = vectors(standardise=True)
    learner.parts.training_step.stay_on_device()
    learner.new_task([0, 1])
    x = torch.full((4, 5), 1e15) * torch.randn(4, 5)
    learner.observe(x, torch.tensor([0, 1, 0, 1]))
    learner.check_finite()
    assert int(inputs(learner)["inputs.count"]) == 4


def test_statistics_stay_when_classes_arrive() -> None:
    learner = Learner(
        MLP((5,), 2, width=6), (5,), method="er-dual-cba", buffer=8, batch_size=4, width=8,
        dtype=torch.float32, boundaries="inferred", standardise=True, device="cpu",
    )  # fmt: skip
    for part in batches(tasks=2):
        for x, y in part:
            learner.observe(x, y)
    assert learner.network.num_classes == 8
    assert int(inputs(learner)["inputs.count"]) == 32


def test_what_is_refused(vectors: Make) -> None:
    with pytest.raises(ValueError, match="only float vectors are standardised"):
        vectors(standardise=True, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"shape \(1, 8, 8\)"):
        Learner(MLP((1, 8, 8), 2), (1, 8, 8), 2, dtype=torch.float32, standardise=True)
    with pytest.raises(ValueError, match="expected False if the transform has a mean and std"):
        vectors(standardise=True, transform=Transform([1.0], [2.0]))
    learner = vectors(standardise=True)
    learn(learner, batches())
    with pytest.raises(ValueError, match="saved with standardise True, expected False"):
        vectors().load_state_dict(learner.state_dict())
    broken = learner.state_dict()
    broken["tensors"]["inputs.squares"][0] = -1
    with pytest.raises(ValueError, match=r"'inputs\.squares' has .* expected no negative value"):
        vectors(standardise=True).load_state_dict(broken)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_a_captured_step_updates_the_statistics(vectors: Make) -> None:
    torch.manual_seed(0)
    options = {"dtype": torch.float32, "standardise": True, "buffer": 8, "batch_size": 4}
    learner = Learner(MLP((5,), 4, width=6), (5,), 4, **options, device="cuda", engine="captured")
    plain = vectors(standardise=True)
    for one in (learner, plain):
        learn(one, batches())
    found, wanted = inputs(learner), inputs(plain)
    assert all(torch.allclose(found[k].cpu(), v, rtol=1e-12) for k, v in wanted.items())
