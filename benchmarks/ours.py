"""dualcba itself, through the public `observe` and through `learn`, which the runner uses."""

from __future__ import annotations

import torch

from benchmarks.common import MEAN, STD, Setup
from dualcba import Learner
from dualcba.data import Transform


class Ours:
    """A learner on the shared stream; `checked` is `observe`, otherwise `learn`."""

    def __init__(self, setup: Setup, method: str, *, checked: bool = False) -> None:
        self.setup = setup
        self.learner = Learner(
            setup.make_network(), setup.shape, setup.classes, method=method, buffer=setup.buffer,
            batch_size=setup.batch, lr=setup.lr, adaptor_lr=setup.adaptor_lr,
            outer_every=setup.outer_every, device=setup.device,
            transform=Transform([MEAN], [STD], pad=setup.pad, flip=True),
        )  # fmt: skip
        self.take = self.learner.observe if checked else self.learner.learn

    def step(self, k: int) -> None:
        """Learn from the k-th batch."""
        if k in (0, self.setup.first):
            self.learner.new_task(self.setup.halves[int(k > 0)])
        with self.learner.engine.scope():
            self.take(*self.setup.data(k))

    @torch.no_grad()
    def evaluate(self, n: int) -> int:
        """In batches of 250, under BN."""
        correct = torch.zeros((), dtype=torch.long, device=self.setup.device)
        with self.learner.evaluating("bn"):
            for x, y in zip(
                self.setup.x[:n].split(250), self.setup.y[:n].split(250), strict=True
            ):  # fmt: skip
                correct += (self.learner.scores(x).argmax(1) == y).sum()
        return int(correct)
