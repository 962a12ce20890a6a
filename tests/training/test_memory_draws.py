"""The literature's protocol in a learner: large memory draws, one mean, no step on an empty memory.

An independent loop in plain PyTorch makes the same steps on the same inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba import Learner, Transform
from dualcba.losses import Batch
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
PLAIN = Transform([0.0], [1.0])
P10: dict[str, Any] = {
    "batch_size": 8, "memory_batch": 12, "forward": "concat", "loss_mean": "samples",
    "while_empty": "store", "optimizer": "adam", "lr": 5e-4, "transform": PLAIN,
}  # fmt: skip


def recorded(learner: Learner, monkeypatch: Any) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Inputs and labels of the batches of each step to come."""
    steps: list[tuple[list[Tensor], list[Tensor]]] = []
    through = learner.parts.forward_pass.through

    def spy(inputs: Any, labels: Any, *others: Any) -> Any:
        steps.append(([x.clone() for x in inputs], [y.clone() for y in labels]))
        return through(inputs, labels, *others)

    monkeypatch.setattr(learner.parts.forward_pass, "through", spy)
    return steps


def test_the_steps_are_those_of_a_plain_loop(
    make_learner: Make, make_net: Any, monkeypatch: Any
) -> None:
    rng = torch.Generator().manual_seed(0)
    learner = make_learner("er", make_net(), **P10)
    steps = recorded(learner, monkeypatch)
    network = copy.deepcopy(learner.network.module)
    adam = torch.optim.Adam(network.parameters(), lr=5e-4)
    seen: list[Tensor] = []
    taught = 0
    for task in range(3):
        learner.new_task([2 * task, 2 * task + 1])
        for _ in range(6):
            x = torch.randint(0, 256, (8, 3, 8, 8), generator=rng, dtype=torch.uint8)
            y = 2 * task + torch.arange(8) % 2
            learner.observe(x, y)
            if seen:  # no step on the first batch
                (new, mem), (new_y, mem_y) = steps[taught]
                taught += 1
                assert torch.equal(new, PLAIN(x))
                assert len(mem) == min(12, 8 * len(seen))
                known = {tuple(row.flatten().tolist()) for row in torch.cat(seen)}
                rows = [tuple(row.flatten().tolist()) for row in mem]
                assert set(rows) <= known  # stored before this step
                assert len(set(rows)) == len(rows)  # without replacement
                network.train()
                loss = F.cross_entropy(network(torch.cat([new, mem])), torch.cat([new_y, mem_y]))
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
            seen.append(PLAIN(x))
    assert taught == len(steps) == 17
    assert learner.step == 18
    for name, value in network.state_dict().items():
        got = learner.network.module.state_dict()[name]
        torch.testing.assert_close(got, value, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "derpp-cba", "clser", "rar"])
def test_the_first_batch_is_stored_and_changes_no_weight(
    method: str, waits: bool, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(method, while_empty="store")
    if not waits:
        learner.parts.training_step.stay_on_device()
    first, second = make_batches(3)[0][:2]
    learner.new_task([0, 1])
    before = learner.state_dict()["tensors"]
    learner.observe(*first)
    after = learner.state_dict()["tensors"]
    kept = [k for k in before if k.startswith(("network.", "adaptor.", "optimizer.", "method."))]
    assert [k for k in kept if not torch.equal(before[k], after[k])] == []
    assert learner.memory.filled == 8
    assert torch.equal(learner.memory.x[:8], first[0])
    assert torch.equal(learner.memory.y[:8], first[1])
    assert learner.step == 1
    assert learner.class_sets.seen[:2].any()
    if learner.memory.columns:
        assert learner.memory.column(learner.memory.columns[0])[:8].any()
    learner.observe(*second)
    now = learner.state_dict()["tensors"]
    assert any(not torch.equal(after[k], now[k]) for k in kept if k.startswith("network."))
    assert learner.memory.filled == 16


def test_of_the_first_batch_labelled_samples_are_stored(
    make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(FixMatch(ER()), while_empty="store")
    x, y = make_batches(3)[0][0]
    labelled = torch.arange(len(y)) % 3 == 0
    learner.new_task([0, 1])
    learner.observe(x, torch.where(labelled, y, -1))
    assert learner.memory.filled == 3
    assert torch.equal(learner.memory.x[:3], x[labelled])
    assert torch.equal(learner.memory.y[:3], y[labelled])


def test_a_batch_that_cannot_be_stored_is_undone(
    make_learner: Make, make_batches: Any, differ: Differ, monkeypatch: Any
) -> None:
    plain, learner = (make_learner("derpp", while_empty="store") for _ in range(2))
    for one in (plain, learner):
        one.new_task([0, 1])
    before = learner.state_dict()

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(learner.parts.outer_loop, "adapt", fail)
        with pytest.raises(MemoryError):
            learner.observe(*make_batches(3)[0][0])
    assert differ(before, learner.state_dict()) == []
    for x, y in make_batches(3)[0]:
        plain.observe(x, y)
        learner.observe(x, y)
    assert differ(plain.state_dict(), learner.state_dict()) == []


def test_a_method_that_fills_its_memory_later_is_refused(make_learner: Make) -> None:
    with pytest.raises(ValueError, match=r"while_empty is 'store', expected 'train': the method "):
        make_learner("icarl", while_empty="store")


@pytest.mark.parametrize("draw", ["memory", "balanced"])
def test_every_draw_has_the_size_of_its_own(
    draw: str, make_learner: Make, teach: Any, monkeypatch: Any
) -> None:
    learner = make_learner("derpp-dual-cba", memory_batch=13, outer_every=1, outer_draw=draw)
    assert (learner.batch_size, learner.memory_batch) == (8, 13)
    sizes: list[tuple[int, ...]] = []
    step = learner.parts.outer_loop.step

    def spy(new: Batch, mem: Any, outer: Batch) -> None:
        sizes.append((len(new.y), *(len(b.y) for b in mem), len(outer.y)))
        step(new, mem, outer)

    monkeypatch.setattr(learner.parts.outer_loop, "step", spy)
    teach(learner)
    assert set(sizes) == {(8, 13, 13, 13)}


def test_by_default_a_draw_is_as_large_as_a_batch(make_learner: Make) -> None:
    assert make_learner("er").memory_batch == 8


def test_one_mean_over_all_samples() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(10, 4, generator=rng, dtype=torch.float64)
    y = torch.arange(10) % 4
    parts = [slice(0, 3), slice(3, 10)]
    new, mem = (Batch(z[k], y[k], z[k], z[k], {}, k) for k in parts)
    method = ER()
    losses = []
    for mean in (False, True):
        method.sample_mean = mean
        losses.append(method.loss(new, [mem], lambda b: b.z))
    torch.testing.assert_close(losses[1], F.cross_entropy(z, y))
    separate = F.cross_entropy(z[:3], y[:3]) + F.cross_entropy(z[3:], y[3:])
    torch.testing.assert_close(losses[0], separate)
    empty = method.loss(new, [], lambda b: b.z)
    torch.testing.assert_close(empty, F.cross_entropy(z[:3], y[:3]))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "derpp"])
def test_captured_equals_eager(method: str, make_learner: Make, make_batches: Any) -> None:
    ends = []
    for engine in ("eager", "captured"):
        learner = make_learner(method, **P10, device="cuda", precision="fp32", engine=engine)
        for task, batches in enumerate(make_batches(3, steps=20)):
            learner.new_task([2 * task, 2 * task + 1])
            for x, y in batches:
                learner.observe(x, y)
        ends.append(learner.state_dict()["tensors"])
    for name, value in ends[0].items():
        if name.startswith(("network.", "adaptor.")):
            torch.testing.assert_close(ends[1][name], value, rtol=1e-3, atol=1e-4, msg=name)
