"""A learner in a caller's own program: modes around it, and a network that the caller also uses."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dualcba import Learner
from dualcba.estimator import DualCBAClassifier
from dualcba.serving import load_model
from dualcba.training.precision import default_modes


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double": lambda: default_dtype(torch.float64),
    "device": lambda: torch.device("meta"),  # the default device; tensors on it have no values
}


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def make_learner(network: nn.Module | None = None, **options: Any) -> Learner:
    given = {"input_shape": (6,), "num_classes": 4, "method": "er-dual-cba", "dtype": torch.float32}
    given |= {"buffer": 20, "batch_size": 8, "device": "cpu"}
    given |= options
    if str(given["method"]).endswith("cba"):
        given.setdefault("outer_every", 2)
    return Learner(network or make_network(), **given)


def live(learner: Learner) -> torch.Tensor:
    """Two tasks, with answers on the way; returns the last."""
    rng = np.random.default_rng(0)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for _ in range(8):
            y = torch.from_numpy(rng.choice(classes, 8))
            x = torch.from_numpy(rng.normal(size=(8, 6))).float() + y[:, None]
            learner.observe(x, y)
            learner.predict(x)
    learner.end_task()
    return learner.predict_proba(x)


@pytest.mark.parametrize("method", ["er-dual-cba", "bic"])
@pytest.mark.parametrize("mode", MODES)
def test_modes_around_the_learner_change_nothing(mode: str, method: str) -> None:
    network = make_network()
    answers = live(make_learner(method=method))
    with MODES[mode]():
        assert torch.equal(live(make_learner(network, method=method)), answers)


@pytest.mark.parametrize("mode", ["double", "device"])
def test_a_growing_learner_is_kept_and_served_as_without_modes(mode: str, tmp_path: Path) -> None:
    def through(network: nn.Module, same: nn.Module) -> torch.Tensor:
        learner, again = (
            make_learner(n, num_classes=None, readout="both") for n in (network, same)
        )
        live(learner)
        learner.save(tmp_path / "state")
        again.load(tmp_path / "state")
        again.export(tmp_path / "model.pt2")
        x = np.ones((3, 6), np.float32)
        assert torch.equal(again.predict_proba(x), learner.predict_proba(x))
        return load_model(tmp_path / "model.pt2").predict_proba(x)  # type: ignore[no-any-return]

    networks = [make_network(), make_network()]
    answers = through(make_network(), make_network())
    with MODES[mode]():
        assert torch.equal(through(*networks), answers)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("mode", MODES)
def test_what_was_copied_in_a_mode_goes_on_without_it(mode: str, copied: Any) -> None:
    learner = make_learner()
    live(learner)
    with MODES[mode]():
        other = copied(learner)
    assert torch.equal(live(other), live(learner))


@pytest.mark.parametrize("mode", MODES)
def test_a_classifier_that_began_in_a_mode_goes_on_without_it(mode: str) -> None:
    def begun(network: str | nn.Module) -> DualCBAClassifier:
        return copy.deepcopy(DualCBAClassifier(network, random_state=0).partial_fit(x, y))

    x, y = np.random.default_rng(0).random((20, 6)), np.arange(20) % 2
    for network in ("mlp", make_network()):
        first = begun(network)
        with MODES[mode]():
            second = begun(network)
        answers = [one.partial_fit(x, y + 1).predict_proba(x) for one in (first, second)]
        assert np.array_equal(*answers)


def test_another_thread_does_not_end_the_dtype_of_a_call() -> None:
    first, second = default_modes(torch.device("cpu")), default_modes(torch.device("cpu"))
    entered, left = threading.Event(), threading.Event()
    found: list[torch.dtype] = []

    def call() -> None:
        with second:
            entered.set()
            left.wait(10)
            found.append(torch.get_default_dtype())

    with MODES["double"]():
        thread = threading.Thread(target=call)
        with first:
            thread.start()
            entered.wait(10)
        left.set()
        thread.join()
        assert (found, torch.get_default_dtype()) == ([torch.float32], torch.float64)


class Own(nn.Linear):
    """A layer that autocast lowers, not the learner."""


@pytest.mark.parametrize("method", ["er-dual-cba", "icarl", "lucir"])
def test_under_autocast_no_weights_of_former_steps_are_met_again(method: str) -> None:
    layers = (Own(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    network = nn.Sequential(*layers)
    same = copy.deepcopy(network)
    answers = live(make_learner(network, method=method, precision="bf16"))
    with MODES["autocast"]():
        assert torch.equal(live(make_learner(same, method=method, precision="bf16")), answers)


def test_a_state_can_be_loaded_in_inference_mode() -> None:
    first, second = make_learner(), make_learner()
    live(first)
    state = first.state_dict()
    with torch.inference_mode():
        second.load_state_dict(state)
    assert torch.equal(live(second), live(first))


def test_samples_made_in_inference_mode_can_be_learnt_from() -> None:
    learner = make_learner()
    learner.new_task([0, 1])
    with torch.inference_mode():
        x, y = torch.rand(8, 6), torch.tensor([0, 1] * 4)
    learner.observe(x, y)
    assert learner.step == 1


@pytest.mark.parametrize("options", [{"method": "er"}, {"levels": "buffer"}])
def test_a_frozen_head_is_fine_where_no_step_of_it_is_taken(options: dict[str, Any]) -> None:
    network = frozen_head()
    before = network[-1].weight.clone()  # type: ignore[index, operator, union-attr]
    live(make_learner(network, **options))
    assert torch.equal(network[-1].weight, before)  # type: ignore[index, arg-type]


def frozen_head() -> nn.Module:
    network = make_network()
    network[-1].requires_grad_(False)
    return network


def test_a_learning_rate_may_come_from_numpy() -> None:
    lr, adaptor_lr = np.logspace(-2, -1, 2, dtype=np.float32)
    got = live(make_learner(lr=lr, adaptor_lr=adaptor_lr))
    assert torch.equal(got, live(make_learner(lr=float(lr), adaptor_lr=float(adaptor_lr))))


def test_a_network_that_the_caller_put_into_evaluation_mode_goes_on_learning() -> None:
    network = make_network()
    learner, twin = make_learner(network), make_learner()
    live(learner)
    live(twin)
    network.eval()
    assert torch.equal(live(learner), live(twin))
    assert network.training


def test_what_was_frozen_stays_so_after_that() -> None:
    network = make_network()
    network[1].eval()
    learner = make_learner(network)
    network.eval()
    live(learner)
    assert [m.training for m in network] == [True, False, True, True]
