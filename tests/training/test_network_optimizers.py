"""A learner with any optimiser of the network: its state, its refusals and its undoing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner
from dualcba.checks import check_learner
from dualcba.engine import Captured
from dualcba.experiments import Spec
from dualcba.nets import MLP, ResNet18

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.001},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01},
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def teach(learner: Learner, make_batches: Any, steps: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Teach a task and a step of the second; return the next steps of it."""
    first, second, _ = make_batches(3, steps=steps)
    for k, batches in enumerate((first, second[:1])):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    return second[1:]  # type: ignore[no-any-return]


# ---------------------------------------------------------------- the optimiser that is used


@every_optimizer
def test_it_passes_the_checks_of_every_learner(name: str) -> None:
    def make(seed: int) -> Learner:
        torch.manual_seed(seed)
        return Learner(
            MLP((6,), 4, width=16), (6,), 4, dtype=torch.float32, buffer=16, batch_size=8,
            method="er-dual-cba", seed=seed, device="cpu", **OPTIMIZERS[name],
        )  # fmt: skip

    check_learner(make)


@pytest.mark.parametrize(
    ("given", "lr"), [({}, 0.03), ({"optimizer": "adam"}, 5e-4), ({"optimizer": "adamw"}, 5e-4)]
)
def test_the_learning_rate_by_default(given: dict[str, Any], lr: float, vectors: Any) -> None:
    assert Spec(**given).lr == lr
    learner = vectors(**given, lr=None)
    assert float(learner.parts.context.lr) == pytest.approx(lr)
    assert learner.optimizer == given.get("optimizer", "sgd")


def test_an_optimizer_cannot_be_assigned(vectors: Any) -> None:
    learner = vectors()
    with pytest.raises(AttributeError, match="expected the option optimizer of Learner: 'sgd', "):
        learner.optimizer = torch.optim.AdamW(learner.network.parameters())
    assert learner.optimizer == "sgd"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "lion"}, "optimizer is 'lion', expected 'sgd' or 'adam' or 'adamw'"),
    ({"optimizer": 3}, "optimizer is 3, expected 'sgd' or"),
    ({"optimizer": ["adam"]}, "optimizer is \\['adam'\\], expected 'sgd' or"),
    ({"momentum": 1.0}, "momentum is 1.0, expected a fraction from 0 to below 1"),
    ({"momentum": "0.9"}, "momentum is '0.9', expected a fraction"),
    ({"nesterov": True}, "nesterov is True, expected False if momentum is 0"),
    ({"weight_decay": -1e-4}, "weight_decay is -0.0001, expected a number of at least 0"),
    ({"weight_decay": 50, "lr": 0.03}, "weight_decay is 50.0, expected less than 1 / lr = 33.3"),
    ({"beta1": 0.5}, "beta1 is 0.5, expected no value: it is an option of adam, and optimizer is"),
    ({"optimizer": "adam", "momentum": 0.9}, "momentum is 0.9, expected no value: .* of sgd"),
    ({"optimizer": "adamw", "beta2": 1}, "beta2 is 1, expected a fraction from 0 to below 1"),
    ({"optimizer": "adam", "beta2": 0.5}, "beta2 is 0.5, expected above beta1² = 0.81"),
    ({"virtual": "sgd"}, "virtual is 'sgd', expected no value: the method has no adaptor"),
]
BAD_VIRTUAL: list[tuple[dict[str, Any], str]] = [
    ({"virtual_lr": 0.1}, "virtual_lr is 0.1, expected None unless virtual is 'sgd'"),
    ({"virtual": "adam"}, "virtual is 'adam', expected 'optimizer' or 'sgd'"),
    ({"virtual": "sgd", "virtual_lr": 0}, "virtual_lr is 0, expected a number above 0"),
    ({"virtual": "sgd", "levels": "joint"}, "virtual is 'sgd', expected 'optimizer' if levels is"),
]


BAD += [({**given, "method": "er-cba"}, text) for given, text in BAD_VIRTUAL]


@pytest.mark.parametrize(("given", "text"), BAD)
def test_options_that_do_not_fit_are_one_line(given: Any, text: str, vectors: Any) -> None:
    for make in (vectors, lambda **options: Spec(**{"method": "er", **options})):
        with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
            make(**given)


# ---------------------------------------------------------------- its state


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser"])
@every_optimizer
def test_a_saved_learner_goes_on_bit_for_bit(
    name: str, method: str, make_learner: Make, make_batches: Any, differ: Differ, tmp_path: Path
) -> None:
    learner = make_learner(method, **OPTIMIZERS[name])
    assert "optimizer.0.momentum_buffer" in (s := learner.state_dict()["tensors"]) or (
        {"optimizer.0.step", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"} <= set(s)
    )
    rest = teach(learner, make_batches)
    learner.save(tmp_path / "state")
    other = make_learner(method, **OPTIMIZERS[name])
    other.load(tmp_path / "state")
    for x, y in rest:
        learner.observe(x, y)
        other.observe(x, y)
    assert differ(learner.state_dict(), other.state_dict()) == []


def test_the_state_of_another_optimizer_is_refused(make_learner: Make, differ: Differ) -> None:
    known = {"sgd without momentum": {}, "sgd with momentum": OPTIMIZERS["momentum"],
             "adam or adamw": OPTIMIZERS["adam"]}  # fmt: skip
    for found, given in known.items():
        state = make_learner("er", **given).state_dict()
        for wanted, own in known.items():
            if wanted != found:
                learner = make_learner("er", **own)
                before = learner.state_dict()
                text = f"the state's optimizer is {found}, expected {wanted} as in the learner"
                with pytest.raises(ValueError, match=text):
                    learner.load_state_dict(state)
                assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [
        ("optimizer.0.exp_avg_sq", -1.0, "expected no negative value"),
        ("optimizer.0.exp_avg", torch.nan, "expected finite numbers"),
        ("optimizer.0.step", 0.5, "expected a whole number of at least 0"),
        ("optimizer.0.step", None, "the state has no entry 'optimizer.0.step'"),
    ],
)
def test_a_damaged_state_is_refused(
    entry: str, value: float | None, text: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner("er", **OPTIMIZERS["adam"])
    teach(learner, make_batches)
    state = learner.state_dict()
    state["tensors"].pop(entry) if value is None else state["tensors"][entry].fill_(value)
    with pytest.raises(ValueError, match=text):
        learner.load_state_dict(state)


@every_optimizer
def test_a_new_task_keeps_the_moments(name: str, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba", **OPTIMIZERS[name])
    teach(learner, make_batches)
    before = learner.state_dict()["tensors"]
    learner.new_task([4, 5])
    after = learner.state_dict()["tensors"]
    kept = [k for k in before if k.startswith("optimizer.")]
    assert kept
    assert all(torch.equal(before[k], after[k]) for k in kept)
    assert any(before[k].any() for k in kept)


# ---------------------------------------------------------------- steps that are undone


def float_learner(name: str, method: str = "er-dual-cba", **options: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return Learner(
        net, (8,), 4, method=method, dtype=torch.float32, buffer=40, batch_size=8,
        **{"lr": 0.1, "device": "cpu", **OPTIMIZERS[name], **options},
    )  # fmt: skip


def batch(k: int, value: float | None = None) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(k)
    y = torch.tensor([2 * (k // 100), 2 * (k // 100) + 1]).repeat(4)
    x = torch.eye(8)[y] * 3 + 0.3 * torch.randn(8, 8, generator=rng)
    if value is not None:
        x[3, 2] = value
    return x, y


def taught(learner: Learner, steps: int = 6) -> Learner:
    for task in range(2):
        learner.new_task([2 * task, 2 * task + 1])
        for k in range(steps):
            learner.observe(*batch(100 * task + k))
    return learner


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser", "derpp-dual-cba"])
@every_optimizer
def test_a_refused_step_changes_nothing(name: str, method: str, differ: Differ) -> None:
    learner = taught(float_learner(name, method))
    before = learner.state_dict()
    with pytest.raises(FloatingPointError):
        learner.observe(*batch(150, 1e20))
    assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser"])
@every_optimizer
def test_without_waiting_a_refused_step_changes_no_weight_or_moment(name: str, method: str) -> None:
    learner = taught(float_learner(name, method))
    learner.parts.training_step.stay_on_device()
    before = learner.state_dict()["tensors"]
    learner.observe(*batch(150, 1e20))
    after = learner.state_dict()["tensors"]
    kept = [k for k in before if k.startswith(("network.", "adaptor", "method.", "optimizer."))]
    assert [k for k in kept if not torch.equal(before[k], after[k])] == []
    with pytest.raises(FloatingPointError, match="at step 13 in task 2"):
        learner.check_finite()


@pytest.mark.parametrize("waits", [True, False])
@every_optimizer
def test_a_rate_or_gradient_that_is_too_large_is_refused(
    name: str, waits: bool, differ: Differ
) -> None:
    """Adam squares gradients: 1e25 is finite, its square is not. A buffer sums them."""
    for rate, gain in ((1e38, 1.0), (None, 1e25)):
        learner = taught(float_learner(name))
        if not waits:
            learner.parts.training_step.stay_on_device()
        with torch.no_grad():
            learner.parts.context.lr.fill_(rate or float(learner.parts.context.lr))
        head: Any = learner.network.head
        hook = head.weight.register_hook(lambda g, gain=gain: g * gain)
        before = learner.state_dict()["tensors"]
        if waits:
            with pytest.raises(FloatingPointError, match="update of the weights became too large"):
                learner.observe(*batch(150))
        else:
            learner.observe(*batch(150))
            with pytest.raises(FloatingPointError):
                learner.check_finite()
        after = learner.state_dict()["tensors"]
        kept = [k for k in before if k.startswith(("network.", "adaptor", "optimizer."))]
        assert [k for k in kept if not torch.equal(before[k], after[k])] == []
        hook.remove()


@pytest.mark.parametrize("method", ["clser-dual-cba", "lucir"])
@every_optimizer
def test_a_failure_after_the_update_is_undone(
    name: str, method: str, make_learner: Make, make_batches: Any, differ: Differ, monkeypatch: Any
) -> None:
    learner = make_learner(method, **OPTIMIZERS[name])
    x, y = teach(learner, make_batches)[0]
    before = learner.state_dict()

    def fail(*_: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(learner.method, "after_step", fail)
        with pytest.raises(MemoryError):
            learner.observe(x, y)
    assert differ(before, learner.state_dict()) == []


@every_optimizer
def test_repeated_updates_are_undone_together(
    name: str, make_learner: Make, make_batches: Any, differ: Differ, monkeypatch: Any
) -> None:
    options = {**OPTIMIZERS[name], "method_options": {"repeats": 3}}
    learner = make_learner("rar-dual-cba", **options)
    x, y = teach(learner, make_batches)[0]
    before, count = learner.state_dict(), [0]
    adapt = learner.parts.outer_loop.adapt

    def fail(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise MemoryError("no memory left")
        return adapt(*args)

    with monkeypatch.context() as patch:
        patch.setattr(learner.parts.outer_loop, "adapt", fail)
        with pytest.raises(MemoryError):
            learner.observe(x, y)
    assert differ(before, learner.state_dict()) == []


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "derpp-cba"])
@every_optimizer
def test_captured_equals_eager(
    name: str, method: str, make_learner: Make, make_batches: Any
) -> None:
    def make(engine: str) -> Learner:
        torch.manual_seed(0)
        given = {"device": "cuda", "precision": "fp32", "engine": engine, **OPTIMIZERS[name]}
        given["lr"] = 0.001
        return make_learner(method, ResNet18(3, 6, width=16), **given)

    eager, captured = make("eager"), make("captured")
    for learner in (eager, captured):
        for k, batches in enumerate(make_batches(3, steps=20)):
            learner.new_task([2 * k, 2 * k + 1])
            for x, y in batches:
                learner.observe(x, y)
    engine = captured.parts.engine
    assert isinstance(engine, Captured)
    assert engine.entries
    assert not engine.refused
    a, b = eager.state_dict()["tensors"], captured.state_dict()["tensors"]
    for entry, value in a.items():
        if entry.startswith(("network.", "adaptor.")):
            torch.testing.assert_close(b[entry], value, rtol=1e-3, atol=1e-4, msg=entry)
        if entry.startswith("optimizer.") and entry.endswith("step"):
            assert float(b[entry]) == 60


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "captured"])
@every_optimizer
def test_a_refused_step_on_a_gpu(name: str, engine: str) -> None:
    learner = taught(float_learner(name, device="cuda", engine=engine), steps=20)
    before = learner.state_dict()["tensors"]
    learner.observe(*batch(150, 1e20))
    after = learner.state_dict()["tensors"]
    kept = [k for k in before if k.startswith(("network.", "adaptor", "optimizer."))]
    names = [k for k in kept if not k.endswith("batches_tracked")]
    assert [k for k in names if not torch.equal(before[k], after[k])] == []
    with pytest.raises(FloatingPointError, match="at step 41 in task 2"):
        learner.check_finite()
