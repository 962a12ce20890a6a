"""dualcba's learner, with `observe` or with `observe_on_device`, which runs use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dualcba.bench.setup import MEAN, STD, Setup
from dualcba.data import Transform
from dualcba.learner import Learner
from dualcba.methods import parse_method


class Ours:
    """A learner on the shared stream; `checked` uses `observe`, otherwise `observe_on_device`."""

    def __init__(self, setup: Setup, method: str, *, checked: bool = False) -> None:
        self.setup = setup
        adaptor: dict[str, Any] = {}
        if parse_method(method)[1] is not None:
            adaptor = {"adaptor_lr": setup.adaptor_lr, "outer_every": setup.outer_every}
        self.learner = Learner(
            setup.make_network(), setup.shape, setup.classes, method=method, buffer=setup.buffer,
            batch_size=setup.batch, lr=setup.lr, device=setup.device,
            transform=Transform([MEAN], [STD], pad=setup.pad, flip=True), **adaptor,
        )  # fmt: skip
        self.engine = self.learner.parts.engine
        self.take = self.learner.observe if checked else self.learner.observe_on_device
        with self.engine.scope():
            self.correct = torch.zeros((), dtype=torch.long, device=setup.device)

    def step(self, k: int) -> None:
        """Train on the k-th batch."""
        if k in (0, self.setup.first):
            self.learner.new_task(self.setup.halves[int(k > 0)])
        with self.engine.scope():
            self.take(*self.setup.data(k))

    def evaluate(self, n: int) -> int:
        """Return the number of correct predictions on n samples, under BN statistics."""
        with self.learner.evaluating("bn"):
            self.correct.zero_()
            for x, y in self.setup.evaluated(n):
                self.engine.run(("evaluate", len(x)), self._count, x, y)
            return int(self.correct)

    def _count(self, x: Tensor, y: Tensor) -> None:
        self.correct += (self.learner.scores(x).argmax(1) == y).sum()
