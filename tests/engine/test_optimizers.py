"""The optimisers equal torch's and do not import the compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from dualcba.engine import optimizers

LEARN = """
import sys, torch
from torch import nn
from dualcba import Learner
net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
learner = Learner(net, (3,), 4, method="er-dual-cba", buffer=8, batch_size=4, outer_every=1,
                  dtype=torch.float32, device={device!r})
for task in ([0, 1], [2, 3]):
    learner.new_task(task)
    for _ in range(4):
        learner.observe(torch.randn(4, 3), torch.tensor(task * 2))
learner.predict(torch.randn(4, 3))
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_they_equal_torchs(name: str) -> None:
    ends: list[list[Tensor]] = []
    for library in (torch.optim, optimizers):
        torch.manual_seed(0)
        p = torch.randn(5, requires_grad=True)
        optimizer = getattr(library, name)([p], lr=0.1, fused=True)
        assert isinstance(optimizer, getattr(torch.optim, name))
        for _ in range(3):
            optimizer.zero_grad()
            assert p.grad is None
            (p**3).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert p.requires_grad
        state = optimizer.state_dict()["state"].get(0, {})
        ends.append([p.detach(), *(v for v in state.values() if isinstance(v, Tensor))])
    assert len(ends[0]) == len(ends[1])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_of_one_kind_is_called(when: str) -> None:
    p = torch.ones(2, requires_grad=True)
    optimizer, calls = optimizers.SGD([p], lr=0.1), []
    getattr(optimizer, f"register_step_{when}_hook")(lambda *_: calls.append(when))
    optimizer.step()
    assert calls == [when]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_hooks_on_steps_are_called(name: str) -> None:
    p = torch.ones(2, requires_grad=True)
    optimizer, calls = getattr(optimizers, name)([p], lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    p.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert calls == ["before", "after"]
    assert bool((p < 1).all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_learner_imports_no_compiler(device: str) -> None:
    command = [sys.executable, "-c", LEARN.format(device=device)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
