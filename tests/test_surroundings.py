"""A learner in somebody's own program: modes around it, arrays as they come, plain mistakes."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dualcba import Learner, Transform
from dualcba.experiments.spec import read_toml
from dualcba.nets import Network
from dualcba.nets import make_network as make_network_by_name
from dualcba.training.precision import Precision


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
}


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def make_learner(network: nn.Module | None = None, **options: Any) -> Learner:
    given = {"input_shape": (6,), "num_classes": 4, "method": "er-dual-cba", "dtype": torch.float32}
    given |= {"buffer": 20, "batch_size": 8, "outer_every": 2, "device": "cpu"}
    return Learner(network or make_network(), **(given | options))


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


@pytest.mark.parametrize(
    "labels",
    [np.array([1, 0, 1, 0])[::-1], np.array([0, 1, 0, 1], ">i4"), np.array([[0, 1, 0, 1]]).T[:, 0]],
    ids=["reversed", "big-endian", "strided"],
)
def test_labels_may_lie_in_memory_as_they_like(labels: np.ndarray[Any, Any]) -> None:
    learner = make_learner()
    learner.new_task([0, 1])
    learner.observe(torch.rand(4, 6), labels)
    assert learner.memory.y[:4].tolist() == [0, 1, 0, 1]


def test_classes_of_a_task_may_come_from_an_iterator() -> None:
    learner = make_learner()
    learner.new_task(c for c in (0, 2))  # type: ignore[arg-type]
    assert learner.sets.new.tolist() == [True, False, True, False]


def test_classes_of_a_task_may_be_tensors() -> None:
    learner = make_learner()
    learner.new_task([torch.tensor(0), np.array(2)])  # type: ignore[list-item]
    assert learner.sets.new.tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match=r"classes of the new task is \[0\.5\], expected"):
        learner.new_task([torch.tensor(0.5)])  # type: ignore[list-item]


@pytest.mark.parametrize("options", [{"method": "er"}, {"levels": "buffer"}])
def test_a_frozen_head_is_fine_where_no_step_of_it_is_taken(options: dict[str, Any]) -> None:
    network = frozen_head()
    before = network[-1].weight.clone()  # type: ignore[index, operator, union-attr]
    live(make_learner(network, **options))
    assert torch.equal(network[-1].weight, before)  # type: ignore[index, arg-type]


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.out(x * mask)  # type: ignore[no-any-return]


def frozen_head() -> nn.Module:
    network = make_network()
    network[-1].requires_grad_(False)
    return network


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "double": (
        lambda: make_learner(make_network().double()),
        r"dtype of the network's 0.weight is torch.float64, expected torch.float32",
    ),
    "frozen": (
        lambda: make_learner(make_network().requires_grad_(False)),
        "no parameter of the network requires a gradient, expected some to learn",
    ),
    "frozen head": (
        lambda: make_learner(frozen_head()),
        "network's 3.weight requires no gradient, expected one that does: the adaptor learns by",
    ),
    "arguments": (
        lambda: make_learner(TwoArguments()),
        r"does not accept inputs of shape \(6,\): .*missing 1 required positional argument",
    ),
    "shape": (lambda: make_learner(input_shape=6), "input_shape is 6, expected the shape of one"),
    "no shape": (lambda: make_learner(input_shape=()), r"input_shape is \(\), expected the shape"),
    "transform": (lambda: make_learner(transform="crop"), "transform is 'crop', expected a Tran"),
    "channels": (
        lambda: make_learner(transform=Transform([0.0] * 3, [1.0] * 3)),
        r"length of the transform's mean and std is 3, expected 1 or 6",
    ),
    "crop": (
        lambda: make_learner(transform=Transform([0.0], [1.0], pad=1)),
        r"input_shape is \(6,\), expected \(channels, height, width\) for a transform that crops",
    ),
    "vectors": (
        lambda: make_network_by_name("resnet18", (64,), 10),
        r"input shape for resnet18 is \(64,\), expected .*; the network 'mlp' accepts any shape",
    ),
    "task": (lambda: make_learner().new_task(3), "new task is 3, expected a list of labels"),  # type: ignore[arg-type]
    "mask": (
        lambda: make_learner().new_task(torch.tensor([False, True, True])),
        r"new task is \[False, True, True\], expected at least one label from 0",
    ),
    "std": (lambda: Transform([0.0], [0.0]), r"std is \[0\.0\], expected numbers above 0"),
    "pad": (lambda: Transform([0.0], [1.0], pad=-1), "pad is -1, expected a whole number of at"),
    "width": (
        lambda: make_learner(adaptor_options={"width": "8"}),
        "width is '8', expected a whole number of at least 1",
    ),
    "state": (
        lambda: make_learner().load_state_dict({}),
        "the state has no entry 'meta', expected what state_dict gave",
    ),
    "bytes": (
        lambda: make_learner(dtype=torch.uint8).predict(np.zeros((2, 6), np.int64)),
        "dtype of given x is 'int64', expected torch.uint8",
    ),
    "folder": (
        lambda: read_toml(Path(__file__).parent),
        "tests is a folder, expected a TOML file",
    ),
    "ibn": (lambda: make_learner(ibn="no"), "ibn is 'no', expected True, False or None"),
    "seen": (lambda: make_learner(seen_only="no"), "seen_only is 'no', expected True or False"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_at_once(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises((ValueError, OSError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "dualcba", "list", "settings"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "online" in done.stdout


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_is_bfloat16_where_the_gpu_has_it(
    capability: tuple[int, int], bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    network = Network(nn.Linear(3, 2), (3,), 2)
    assert Precision("auto", torch.device("cuda"), network).bf16 is bf16
    assert not Precision("auto", torch.device("cpu"), network).bf16
    assert Precision("bf16", torch.device("cpu"), network).bf16


def test_a_step_that_fails_leaves_no_empty_rows_in_the_memory() -> None:
    network = nn.Sequential(nn.Linear(5, 4))
    learner = Learner(network, (5,), 4, dtype=torch.float32, batch_size=4, device="cpu")
    learner.new_task([2, 3])

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = network.register_forward_hook(refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.observe(np.ones((6, 5)), [2, 3] * 3)
    hook.remove()
    assert learner.memory.filled == 0
    learner.observe(np.ones((2, 5)), [2, 3])
    assert learner.memory.y[: learner.memory.filled].tolist() == [2, 3]


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
