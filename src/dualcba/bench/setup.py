"""The synthetic stream, the network and the interface that all contenders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.nets import make_network

MEAN, STD = 0.5, 0.25


@dataclass
class Setup:
    """A stream of two tasks of synthetic images, and the network that learns it.

    The first `first` batches have the first half of the classes, all others the second half.

    >>> setup = Setup(size=8, channels=1, classes=10, samples=640)
    >>> x, y = setup.data(0)
    >>> tuple(x.shape), int(y.max()) < 5, int(setup.data(10)[1].min()) >= 5
    ((32, 1, 8, 8), True, True)
    """

    network: str = "mlp"
    device: str = "cpu"
    size: int = 32
    channels: int = 3
    classes: int = 100
    samples: int = 6400
    buffer: int = 200
    batch: int = 32
    lr: float = 0.03
    adaptor_lr: float = 0.01
    outer_every: int = 5
    pad: int = 4
    first: int = 10

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        shape = (self.samples, *self.shape)
        self.x = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8)).to(self.device)
        labels = np.arange(self.samples) * self.classes // self.samples  # sorted
        self.y = torch.from_numpy(labels).to(self.device)
        half = self.samples // 2
        order = np.stack([rng.permutation(half), half + rng.permutation(half)])
        self._rows = torch.from_numpy(order).to(self.device)

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image."""
        return self.channels, self.size, self.size

    @property
    def halves(self) -> tuple[list[int], list[int]]:
        """The classes of the two tasks."""
        middle = self.classes // 2
        return list(range(middle)), list(range(middle, self.classes))

    def rows(self, k: int) -> Tensor:
        """Return the indices of the samples in batch k."""
        per_pass = self._rows.shape[1] // self.batch
        start = k % per_pass * self.batch
        return self._rows[int(k >= self.first), start : start + self.batch]

    def data(self, k: int) -> tuple[Tensor, Tensor]:
        """Return batch k: raw images (n, channels, size, size) and labels (n,)."""
        rows = self.rows(k)
        return self.x[rows], self.y[rows]

    def evaluated(self, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the first n samples in batches of 250 (1000 on a GPU)."""
        size = 1000 if self.cuda else 250
        return zip(torch.split(self.x[:n], size), torch.split(self.y[:n], size), strict=True)

    def make_network(self) -> nn.Module:
        """Return the network, with the same initial weights for all contenders."""
        torch.manual_seed(0)
        return make_network(self.network, self.shape, self.classes).to(self.device)

    def make_ordinary(self) -> nn.Module:
        """Return the same network without layers that use fused kernels."""
        network = self.make_network()
        for layer in network.modules():
            if type(layer) is nn.BatchNorm2d:
                layer.__class__ = Ordinary
        return network


class Ordinary(nn.BatchNorm2d):
    """Batch normalisation for which `dualcba.kernels.conv_norm` uses no kernel."""


class Contender(Protocol):
    """A training loop that takes part in the comparison."""

    def step(self, k: int) -> None:
        """Learn from batch k of the stream."""

    def evaluate(self, n: int) -> int:
        """Return the number of correct predictions on the first n samples."""


Make = Callable[[Setup], Contender]
