"""Learners on synthetic CIFAR-shaped data, ready to be timed."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from dualcba import from_arrays
from dualcba.data import Dataset, disjoint
from dualcba.experiments import Hardware, Spec, make_learner

WARM = 30
"""Steps of the second task before timing, in which both kinds of steps are captured."""


def synthetic(
    classes: int = 100, train: int = 2000, test: int = 5000, shape: tuple[int, ...] = (3, 32, 32)
) -> Dataset:
    rng = np.random.default_rng(0)

    def images(n: int) -> NDArray[np.uint8]:
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8)

    return from_arrays(
        images(train), np.arange(train) % classes, images(test), np.arange(test) % classes,
        num_classes=classes, pad=4, flip=True, name="synthetic",
    )  # fmt: skip


class Ready:
    """A learner in its second task, past warm-up and capture."""

    def __init__(self, spec: Spec, hardware: Hardware, data: Dataset) -> None:
        start = time.perf_counter()
        self.learner = make_learner(spec, data, hardware)
        self.device = self.learner.device
        self.stream = disjoint(data, spec.tasks)
        self._x, self._y = (t.to(self.device) for t in (data.train_x, data.train_y))
        self._take(0, spec.batch_size)
        self.step()
        self.sync()
        self.first = time.perf_counter() - start
        self.steps(11)
        self._take(1, spec.batch_size)
        self.steps(WARM)
        self.sync()
        self.ready = time.perf_counter() - start

    def _take(self, task: int, batch: int) -> None:
        rows = torch.from_numpy(self.stream[task].train[:batch]).to(self.device)
        self.batch = self._x[rows], self._y[rows]
        self.sync()
        self.learner.new_task(self.stream[task].classes)

    def step(self) -> None:
        """Learn once more from the same batch."""
        with self.learner.parts.engine.scope():
            self.learner.observe_on_device(*self.batch)

    def steps(self, count: int) -> None:
        """Make several steps."""
        for _ in range(count):
            self.step()

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
