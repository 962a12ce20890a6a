"""Tasks: which classes they bring, what the methods hear of them, what cannot be one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner
from dualcba.methods.er import ER

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]

X = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
Y = torch.tensor([0, 1, 0, 1])


class Rereads(ER):
    """Asks for the task's samples again, and counts them; has noise and a state of its own."""

    rereads_task = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moved", torch.zeros((), dtype=torch.float64))
        self.ended: list[tuple[Tensor, Tensor]] = []
        self.begun = 0

    def noise(self, rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.random(2)

    def after_step(self, noise: Tensor | None) -> None:
        assert noise is not None
        self.moved += noise.sum()

    def begin_task(self) -> None:
        self.begun += 1

    def end_task(self, x: Tensor, y: Tensor) -> None:
        self.ended.append((x, y))


def test_methods_hear_of_tasks_and_get_their_data_back(
    make_learner: Make, make_batches: Any
) -> None:
    method = Rereads()
    learner = make_learner(method)
    stream = make_batches(3, steps=3)
    for k, batches in enumerate(stream[:2]):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    learner.end_task()
    learner.end_task()  # twice is once
    assert method.begun == 2
    assert len(method.ended) == 2
    for (x, y), batches in zip(method.ended, stream, strict=False):
        assert torch.equal(x, torch.cat([b[0] for b in batches]))
        assert torch.equal(y, torch.cat([b[1] for b in batches]))
    assert float(method.moved) > 0


def test_methods_that_do_not_reread_get_nothing(make_learner: Make, teach: Teach) -> None:
    class Plain(Rereads):
        rereads_task = False

    method = Plain()
    teach(make_learner(method)).end_task()
    assert [(len(x), len(y)) for x, y in method.ended] == [(0, 0), (0, 0)]


def test_no_task_has_begun(make_learner: Make, teach: Teach) -> None:
    learner = make_learner()
    with pytest.raises(ValueError, match="new_task"):
        learner.observe(X, Y)
    teach(learner, tasks=1).end_task()
    with pytest.raises(ValueError, match="new_task"):
        learner.observe(X, Y)


@pytest.mark.parametrize("classes", [[], [6], [-1], [2, 77]])
def test_bad_tasks_are_named_and_change_nothing(
    classes: list[int], make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(), tasks=1)
    before = learner.state_dict()
    with pytest.raises(ValueError, match=re.escape(f"{classes}") + ".*0 to 5"):
        learner.new_task(classes)
    assert differ(before, learner.state_dict()) == []


def test_new_task_takes_a_tensor_or_an_array(vectors: Make) -> None:
    learner = vectors()
    learner.new_task(torch.tensor([0, 1]))
    learner.new_task(np.array([2]))
    assert learner.class_sets.new.tolist() == [False, False, True, False]


def test_the_end_of_a_task_that_failed_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(nn.Linear(5, 4), (5,), 4, method="icarl", dtype=torch.float32, device="cpu")
    learner.new_task([0, 1])
    learner.observe(torch.randn(6, 5), torch.tensor([0, 1] * 3))
    end, ended = learner.method.end_task, []
    monkeypatch.setattr(learner.method, "end_task", fails)
    with pytest.raises(MemoryError):
        learner.end_task()
    monkeypatch.setattr(learner.method, "end_task", lambda x, y: (ended.append(len(x)), end(x, y)))
    learner.new_task([2])
    assert ended == [6]


def test_classes_of_a_task_may_come_from_an_iterator(vectors: Make) -> None:
    learner = vectors()
    learner.new_task(c for c in (0, 2))  # type: ignore[arg-type]
    assert learner.class_sets.new.tolist() == [True, False, True, False]


def test_classes_of_a_task_may_be_tensors(vectors: Make) -> None:
    learner = vectors()
    learner.new_task([torch.tensor(0), np.array(2)])  # type: ignore[list-item]
    assert learner.class_sets.new.tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match=r"classes of the new task is \[0\.5\], expected"):
        learner.new_task([torch.tensor(0.5)])  # type: ignore[list-item]


def fails(*_: object) -> None:
    raise MemoryError
