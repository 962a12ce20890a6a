"""A step has static shapes, never waits for the device, and draws nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_helpers import METHODS, TwoDraws

from dualcba import Learner
from dualcba.checks.stream import Arrival, Material, play
from dualcba.nets import freeze

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


class NoSync(TorchDispatchMode):
    """Fails on operations that make a GPU's host wait, or whose shape depends on data."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
    RANDOM = ("rand", "normal_", "uniform_", "bernoulli", "multinomial", "randperm")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert name not in self.FORBIDDEN, f"{func} waits for the device"
        assert not name.startswith(self.RANDOM), f"{func} draws inside the step"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", [*METHODS, "er-balanced-cba", TwoDraws])
@pytest.mark.parametrize("space", ["logit", "probability"])
def test_a_step_never_waits_for_the_device(
    method: Any, space: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    given = {"adaptor": "dual-cba"} if method is TwoDraws else {}
    method = method() if method is TwoDraws else method
    if method != "er":
        given = {"space": space, "width": 8, **given}
    learner = make_learner(method, **given)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10


class Tokens(nn.Module):
    """An embedding of whole numbers, with a vector added."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, ids: Tensor, vector: Tensor | None = None) -> Tensor:
        h = self.embed(ids).mean(1)
        return self.out(h if vector is None else h + vector)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["tokens", "several", "features"])
@pytest.mark.parametrize("method", ["er", "derpp-dual-cba", "er-balanced-cba"])
def test_steps_on_other_samples_wait_for_nothing(
    method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, shape, dtype = Tokens(), (5,), torch.int64
    several = {"ids": shape, "vector": (8,)}, {"ids": dtype, "vector": torch.float32}
    if kind == "features":
        freeze(net)
    given = several if kind == "several" else (shape, dtype)
    learner = Learner(
        net, given[0], 4, dtype=given[1], method=method, buffer=12, batch_size=4,
        cache_features=kind == "features",
    )  # fmt: skip
    ran = strictly(learner, monkeypatch)
    events = Material(learner).stream()
    play(learner, events)
    assert len(ran) == sum(isinstance(event, Arrival) for event in events)
    if (trunk := learner.parts.trunk) is not None:
        with NoSync():
            trunk(torch.zeros(3, 5, dtype=torch.int64))


def strictly(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fail where a step waits for the device; the keys of the steps, as they come."""
    learner.parts.training_step.stay_on_device()  # as on a GPU
    run, ran = learner.parts.engine.run, []

    def strict(key: Any, fn: Any, *inputs: Tensor) -> None:
        ran.append(key)
        with NoSync():
            run(key, fn, *inputs)

    monkeypatch.setattr(learner.parts.engine, "run", strict)
    return ran


EVERYTHING: dict[str, Any] = {
    "outer_draw": "balanced", "outer_loss": "adjusted", "targets": "raw", "strength": True,
    "prior": True, "outer_warmup": 3,
}  # fmt: skip


@pytest.mark.parametrize("method", ["er-cba", "er-balanced-cba", "derpp-dual-cba", "rar-dual-cba"])
@pytest.mark.parametrize("draw", ["memory", "balanced"])
def test_nor_does_one_with_all_ingredients(
    draw: str, method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    given = {**EVERYTHING, "outer_draw": draw} | ({} if method == "er-cba" else {"counts": True})
    learner = make_learner(method, **given)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())


@pytest.mark.parametrize("method", ["er-cba", "derpp-dual-cba"])
@pytest.mark.parametrize("levels", ["joint", "buffer"])
def test_nor_does_one_of_a_single_level(
    levels: str, method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner(method, levels=levels)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10


@pytest.mark.parametrize("method", ["er-cba", "derpp-dual-cba"])
def test_nor_does_one_that_updates_the_network_first(
    method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner(method, update_order="network-first", outer_every=1)
    ran = strictly(learner, monkeypatch)
    teach(learner)
    assert len(ran) == 10


def test_the_guard_against_waiting_sees_an_item() -> None:
    with pytest.raises(AssertionError, match="waits"), NoSync():
        torch.ones(3).sum().item()


@pytest.mark.parametrize("method", [*METHODS, "er-balanced-cba"])
def test_steps_with_equal_keys_have_equal_shapes(
    method: str, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    """Once the memory is full there are two kinds of steps: with and without the outer one."""
    learner = make_learner(method, buffer=16)
    learner.parts.training_step.stay_on_device()  # keys are those of the path of a GPU
    run, keys = learner.parts.engine.run, []

    def spy(key: Any, fn: Any, *inputs: Tensor) -> None:
        keys.append((key, tuple(t.shape for t in inputs)))
        run(key, fn, *inputs)

    monkeypatch.setattr(learner.parts.engine, "run", spy)
    teach(learner, tasks=3)
    assert len({key for key, _ in keys[3:]}) == (1 if method == "er" else 2)
    assert len(set(keys)) == len({key for key, _ in keys})


def test_learning_draws_nothing_from_the_global_generators(
    make_learner: Make, teach: Teach
) -> None:
    learner = make_learner()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    teach(learner)
    learner.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
