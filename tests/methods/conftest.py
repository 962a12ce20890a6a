"""Fixtures of the tests of methods: a method in a small network, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dualcba.data import Transform
from dualcba.losses import Batch
from dualcba.methods import Context, Method
from dualcba.nets import Network
from dualcba.tasks.class_sets import ClassSets

CLASSES, INPUTS, FEATURES = 6, 5, 4


class Bench:
    """A bound method, and batches with the outputs of its network."""

    def __init__(self, method: Method, size: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            body = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())
            net = nn.Sequential(*body, nn.Linear(FEATURES, CLASSES))
        self.method = method
        self.sets = ClassSets(CLASSES)
        self.network = Network(net, (INPUTS,), CLASSES).double()
        self.memory = method.make_memory(size, (INPUTS,), torch.float64, CLASSES)
        transform = Transform([0.0], [1.0]).double()
        lr = torch.tensor(0.1)
        parts = (self.network, self.sets, self.memory, transform)
        method.bind(Context(*parts, lr, 4, nullcontext))

    def begin(self, *tasks: Sequence[int]) -> None:
        """Begin each of these tasks, and change the network after each."""
        for k, classes in enumerate(tasks):
            self.sets.new_task(classes)
            self.method.begin_task()
            self.shake(k)

    @torch.no_grad()
    def shake(self, seed: int) -> None:
        """Change the weights, as training would."""
        generator = torch.Generator().manual_seed(seed)
        for p in self.network.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))

    def batch(self, labels: Sequence[int], seed: int = 0) -> Batch:
        """Return random samples with these labels and the outputs of the network."""
        x = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(labels), INPUTS)))
        z, h = self.network(x)
        return Batch(x, torch.tensor(labels), z, h)


@pytest.fixture
def bench() -> Callable[..., Any]:
    """Return a function that binds a method to a `Bench`."""
    return lambda method, size=12: Bench(method, size)
