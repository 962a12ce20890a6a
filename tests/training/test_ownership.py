"""Threads share a learner through a lock; a second learner on the same weights gives a warning."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dualcba import Learner

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "icarl"])
def test_predictions_of_another_thread_change_nothing(
    method: str, make_learner: Make, make_batches: Any, differ: Differ, images: Any
) -> None:
    alone, shared = make_learner(method), make_learner(method)
    stop, answers = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            answers.append(shared.predict(images.test_x))
            shared.state_dict()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for learner in (alone, shared):
            for k, batches in enumerate(make_batches(3)):
                learner.new_task([2 * k, 2 * k + 1])
                for x, y in batches:
                    learner.observe(x, y)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(answers) > 1
    assert differ(alone.state_dict(), shared.state_dict()) == []


def test_two_threads_that_observe_take_whole_steps(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba")
    first = make_batches(3)[0]
    learner.new_task([0, 1])
    errors: list[BaseException] = []

    def teach() -> None:
        try:
            for x, y in first * 4:
                learner.observe(x, y)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=teach) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert learner.step == 12 * len(first)
    assert learner.memory.seen == 12 * sum(len(y) for _, y in first)


def test_evaluating_keeps_other_threads_out(make_learner: Make, teach: Any, images: Any) -> None:
    learner = teach(make_learner("er"))
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (learner.predict(images.test_x), entered.set()))
    with learner.evaluating("ibn"):
        thread.start()
        assert not entered.wait(0.1)
    thread.join()
    assert entered.is_set()


def test_a_second_learner_on_a_network_gives_a_warning(make_learner: Make, make_net: Any) -> None:
    net = make_net()
    first = make_learner("er", net)
    with pytest.warns(UserWarning, match="another learner trains the same weights"):
        make_learner("er", net)
    with pytest.warns(UserWarning, match="another learner"):
        make_learner("er", torch.nn.Sequential(*net))
    assert first.step == 0


def test_a_network_is_free_when_its_learner_is_gone(make_learner: Make, make_net: Any) -> None:
    net = make_net()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                make_learner("er", net)
            make_learner("er", make_net())
    finally:
        gc.enable()


def test_a_copy_has_a_lock_of_its_own(make_learner: Make, teach: Any, differ: Differ) -> None:
    learner = teach(make_learner("er-dual-cba"))
    other = copy.deepcopy(learner)
    assert differ(learner.state_dict(), other.state_dict()) == []
    with learner.evaluating("bn"):
        thread = threading.Thread(target=other.state_dict)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
