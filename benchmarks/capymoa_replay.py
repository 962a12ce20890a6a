"""CapyMOA's `ExperienceReplay` around `Finetune`, if installed; it needs Java.

It concatenates the new batch with a memory draw of the same size and trains on both at once, with
common batch statistics. Samples are flat vectors of floats, stored as they arrive. CapyMOA has no
augmentation: `augmented` images are augmented one at a time before, as in a torchvision dataset,
and the memory stores the augmented image.

Not compared: river 0.26, which has no neural networks, and deep-river 0.3.4, which has networks
but no rehearsal memory and needs torch below 2.6.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.torchvision_operators import define_missing
from dualcba.bench.setup import MEAN, STD, Setup
from dualcba.bench.usual import augment, to_pil


def available() -> bool:
    """Return whether CapyMOA and Java are installed."""
    return importlib.util.find_spec("capymoa") is not None and shutil.which("java") is not None


class CapyMOA:
    """CapyMOA's learner on the shared stream."""

    def __init__(self, setup: Setup, *, augmented: bool = True) -> None:
        define_missing()
        from capymoa.classifier import Finetune
        from capymoa.ocl.strategy import ExperienceReplay

        self.setup = setup
        network = nn.Sequential(nn.Unflatten(1, setup.shape), setup.make_ordinary())
        optimizer = torch.optim.SGD(network.parameters(), lr=setup.lr)
        inner = Finetune(_schema(setup), network, optimizer, device=setup.device)
        self.learner = ExperienceReplay(inner, buffer_size=setup.buffer)
        self.images = [to_pil(x) for x in setup.x] if augmented else []

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """Return flat, normalised images and labels of batch k."""
        if not self.images:
            x, y = self.setup.data(k)
            return ((x.float() / 255 - MEAN) / STD).flatten(1), y
        rows = self.setup.rows(k)
        views = [augment(self.images[i], self.setup.pad) for i in rows.tolist()]
        return torch.stack(views).flatten(1), self.setup.y[rows]

    def step(self, k: int) -> None:
        """Learn from batch k."""
        self.learner.batch_train(*self.batch(k))

    def evaluate(self, n: int) -> int:
        """Return the number of correct predictions, in the batches that all contenders use."""
        correct = 0
        for x, y in self.setup.evaluated(n):
            flat = ((x.float() / 255 - MEAN) / STD).flatten(1)
            correct += int((self.learner.batch_predict_proba(flat).argmax(1) == y).sum())
        return correct


def _schema(setup: Setup) -> Any:
    from capymoa.stream import Schema

    features = [f"pixel{i}" for i in range(setup.channels * setup.size**2)]
    classes = [str(c) for c in range(setup.classes)]
    return Schema.from_custom([*features, "class"], "class", {"class": classes}, name="made-up")
