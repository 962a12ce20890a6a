"""A step has static shapes and draws nothing itself; see `tests/engine/test_replays.py` too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_helpers import METHODS

from dualcba import Learner

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


FRONTIER = ("las", "pcr", "gsa", "obc", "er+mkd", "er+ccl-dc", "derpp+mkd", "gsa+mkd",
            "er-ace+ccl-dc")  # fmt: skip


@pytest.mark.parametrize(
    "method", [*METHODS, "er-balanced-cba", *(f"{name}-dual-cba" for name in FRONTIER)]
)
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
