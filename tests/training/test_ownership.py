"""Threads share a learner through a lock; a second learner on the same weights gives a warning."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner
from dualcba.engine import Eager

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


COPIES: dict[str, Callable[[Learner], Learner]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)),
}
METHODS = ["er-dual-cba", "er+mkd-dual-cba", "derpp", "clser-cba", "icarl", "lucir", "bic", "obc"]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("method", METHODS)
def test_a_copy_goes_on_alike_and_shares_nothing(
    method: str, copied: str, make_learner: Make, teach: Any, make_batches: Any, images: Any,
    differ: Differ,
) -> None:  # fmt: skip
    learner = teach(make_learner(method, ibn=True))
    learner.predict(images.test_x)
    before, other = learner.state_dict(), COPIES[copied](learner)
    answers = []
    for one in (other, learner):
        one.new_task([4, 5])
        for x, y in make_batches()[2]:
            one.observe(x, y)
            answers.append(one.predict_proba(images.test_x))
        if one is other:
            assert differ(before, learner.state_dict()) == []
    assert differ(learner.state_dict(), other.state_dict()) == []
    assert all(map(torch.equal, answers[:5], answers[5:]))


def test_a_copy_is_made_within_the_scope_of_its_own_engine(
    make_learner: Make, teach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is the stream of its steps; on another one the copies would race with them."""
    learner = teach(make_learner("er-dual-cba", optimizer="adam"))
    entered: list[Eager] = []
    tensors: list[Eager | None] = []
    copy_tensor = Tensor.__deepcopy__

    @contextmanager
    def scope(engine: Eager) -> Iterator[None]:
        entered.append(engine)
        yield
        entered.pop()

    def copied(tensor: Tensor, memo: Any) -> Tensor:
        tensors.append(entered[-1] if entered else None)
        return copy_tensor(tensor, memo)  # type: ignore[no-any-return]

    monkeypatch.setattr(Eager, "scope", scope)
    monkeypatch.setattr(Tensor, "__deepcopy__", copied)
    other = copy.deepcopy(learner)
    assert len(tensors) > 20
    assert all(engine is other.parts.engine for engine in tensors)
    assert other.parts.engine is not learner.parts.engine


@pytest.mark.parametrize("copied", COPIES)
def test_the_outer_loss_of_a_copy_has_class_sets_of_its_own(
    copied: str, make_learner: Make, teach: Any, make_batches: Any, differ: Differ
) -> None:
    learner = teach(make_learner("er-dual-cba", outer_loss="adjusted"))
    other = COPIES[copied](learner)
    learner.class_sets.seen.fill_(True)  # of the original alone
    expected = teach(make_learner("er-dual-cba", outer_loss="adjusted"))
    for one in (other, expected):
        for x, y in make_batches()[1]:
            one.observe(x, y)
    assert differ(other.state_dict(), expected.state_dict()) == []


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("method", ["er", "er+mkd", "clser", "obc"])
def test_a_copy_undoes_a_step_that_is_refused(
    method: str, copied: str, vectors: Make, differ: Differ
) -> None:
    learner = vectors(method=method)
    learner.new_task([0, 1])
    for _ in range(3):
        learner.observe(torch.eye(5)[:4], [0, 1, 0, 1])
    other = COPIES[copied](learner)
    before = other.state_dict()
    with pytest.raises(FloatingPointError):
        other.observe(torch.full((4, 5), 1e38), [0, 1, 0, 1])
    assert differ(before, other.state_dict()) == []


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_grows_alike(copied: str, differ: Differ) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    options: Any = {"dtype": torch.float32, "batch_size": 4, "boundaries": "inferred"}
    learner = Learner(network, (4,), **options)
    learner.observe(torch.eye(4), ["a", "b"] * 2)
    other = COPIES[copied](learner)
    for one in (other, learner):
        for _ in range(3):
            one.observe(torch.eye(4), ["b", "c", "d", "e"])
    assert other.classes_ == ["a", "b", "c", "d", "e"]
    assert differ(learner.state_dict(), other.state_dict()) == []


class Unpicklable(nn.Linear):
    def __reduce__(self) -> Any:
        raise TypeError("no pickle\nof this")


def test_a_learner_that_cannot_be_pickled_names_what_can() -> None:
    network = nn.Sequential(nn.Linear(4, 8), Unpicklable(8, 2))
    learner = Learner(network, (4,), 2, dtype=torch.float32)
    words = "the learner cannot be pickled: no pickle of this, expected save or snapshot, or"
    with pytest.raises(pickle.PicklingError, match=words):
        pickle.dumps(learner)
    with learner.evaluating("bn"), pytest.raises(ValueError, match="deepcopy was called inside"):
        copy.deepcopy(learner)
