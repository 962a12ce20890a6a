"""A step that is refused stops the run with the step, the task and the last finite loss."""

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


@pytest.mark.parametrize("method", METHODS)
def test_a_nan_loss_stops_with_step_task_and_last_finite_loss(
    method: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(method)
    spy: list[float] = []
    loss = learner.method.loss
    learner.method.loss = lambda *a: _note(spy, loss(*a))  # type: ignore[method-assign]

    def run() -> None:
        for k, batches in enumerate(make_batches(3)):
            learner.new_task([2 * k, 2 * k + 1])
            for i, (x, y) in enumerate(batches):
                if (k, i) == (1, 2):
                    learner.parts.context.lr.fill_(1e30)
                learner.observe(x, y)

    with pytest.raises(FloatingPointError) as caught:
        run()
    assert np.isfinite(spy).all()
    message = str(caught.value)
    assert "at step 8 in task 2" in message  # the step with the huge rate
    last = -1 - learner.method.repeats
    assert f"the last finite loss was {spy[last]:.4g}" in message
    assert "\n" not in message
    assert all(p.isfinite().all() for p in learner.network.parameters())
    assert learner.step == 7


def _note(into: list[float], loss: Tensor) -> Tensor:
    into.append(loss.item())
    return loss


def test_a_huge_rate_from_the_start(make_learner: Make, teach: Teach) -> None:
    with pytest.raises(FloatingPointError, match="step 1 in task 1; the last finite loss was un"):
        teach(make_learner("er", lr=1e30))


def test_after_loading_the_last_finite_loss_is_still_known(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    """The same line whether or not the run was interrupted."""
    lines = []
    for interrupted in (False, True):
        learner = teach(make_learner("er"))
        if interrupted:
            state, learner = learner.state_dict(), make_learner("er")
            learner.load_state_dict(state)
        learner.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr,operator]
        with pytest.raises(FloatingPointError) as caught:
            learner.observe(*make_batches(3)[1][0])
        lines.append(str(caught.value))
    assert lines[0] == lines[1]


def test_a_good_state_loaded_after_a_nan_goes_on(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    good = teach(make_learner("er"), steps=3)  # six steps
    state = good.state_dict()
    broken = teach(make_learner("er"), steps=2)
    broken.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr,operator]
    x, y = make_batches(3)[1][0]
    for _ in range(2):  # its losses five and six are no numbers
        with pytest.raises(FloatingPointError):
            broken.observe(x, y)
    broken.load_state_dict(state)
    broken.observe(x, y)
