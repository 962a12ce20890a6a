"""Kernels compiled ahead: all of them, whatever becomes of one; nothing where there are none."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from dualcba import Learner, ahead
from dualcba.engine import Eager
from dualcba.nets import MLP, Network, ResNet18


def fail() -> None:
    raise RuntimeError("cannot be compiled")


def test_what_fails_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=30)  # passed only by two at the same time
    calls = [fail, together.wait, fail, together.wait]
    monkeypatch.setattr("dualcba.fused.rehearsals", lambda *_: calls)
    network = Network(ResNet18(3, 5, width=4), (3, 8, 8), 5)
    ahead.rehearse(network, None, torch.float32, Eager(torch.device("cpu")))
    assert not together.broken
    assert together.n_waiting == 0


def test_other_networks_have_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualcba.fused.rehearsals", lambda *_: pytest.fail("not needed"))
    network = Network(MLP((3,), 2), (3,), 2)
    ahead.rehearse(network, None, torch.float32, Eager(torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_steps_compile_nothing_more(precision: str) -> None:
    from dualcba import kernels, outer_kernels

    jitted = [
        kernels.sums_kernel, kernels.normalise_kernel, kernels.back_sums_kernel,
        kernels.back_kernel, outer_kernels.hidden_kernel, outer_kernels.correction_kernel,
        outer_kernels.omega_kernel, outer_kernels.nu_kernel, outer_kernels.entropy_kernel,
    ]  # fmt: skip
    network = ResNet18(3, 10, width=16)
    how: dict[str, Any] = {"method": "er-dual-cba", "device": "cuda", "precision": precision}
    learner = Learner(network, (3, 8, 8), 10, buffer=32, batch_size=8, outer_every=2, **how)

    def compiled() -> list[int]:
        return [len(caches[0]) for k in jitted for caches in k.device_caches.values()]

    before = compiled()
    assert len(before) == len(jitted)
    rng = torch.Generator().manual_seed(0)
    for task in range(2):
        learner.new_task(range(5 * task, 5 * task + 5))
        for _ in range(6):
            x = torch.randint(256, (8, 3, 8, 8), generator=rng, dtype=torch.uint8)
            learner.observe(x, torch.randint(5 * task, 5 * task + 5, (8,), generator=rng))
    assert compiled() == before
