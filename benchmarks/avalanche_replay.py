"""avalanche-lib's online replay: `Naive` with a `ReplayPlugin` and a reservoir, if installed.

Images are augmented one at a time, as in `usual`. With `augmented=False`, they are only
normalised, in advance, which leaves the cost of the framework itself. There are no metrics and no
loggers.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.torchvision_operators import define_missing
from dualcba.bench.setup import MEAN, STD, Setup
from dualcba.bench.usual import augment, to_pil


def available() -> bool:
    """Return whether avalanche-lib is installed."""
    return importlib.util.find_spec("avalanche") is not None


class _Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples of the shared stream, one image at a time."""

    def __init__(self, setup: Setup, batches: range, augmented: bool) -> None:
        rows = torch.cat([setup.rows(k) for k in batches])
        self.pad = setup.pad
        self.augmented = augmented
        raw = setup.x[rows].cpu()
        self.ready = (raw.float() / 255 - MEAN) / STD
        self.images = [to_pil(image) for image in raw] if augmented else []
        self.targets = setup.y[rows].tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x = augment(self.images[i], self.pad) if self.augmented else self.ready[i]
        return x, self.targets[i]


class Avalanche:
    """One experience per batch of the stream."""

    def __init__(self, setup: Setup, *, augmented: bool = True) -> None:
        define_missing()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from avalanche.benchmarks import benchmark_from_datasets
            from avalanche.benchmarks.scenarios.online import split_online_stream
            from avalanche.benchmarks.utils import as_classification_dataset
            from avalanche.training import Naive
            from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
            from avalanche.training.storage_policy import ReservoirSamplingBuffer
        warnings.showwarning = lambda *_, **__: None  # Avalanche warns at every step
        self.setup = setup
        self.net = setup.make_ordinary()
        storage = ReservoirSamplingBuffer(max_size=setup.buffer)
        replay = ReplayPlugin(
            mem_size=setup.buffer, batch_size_mem=setup.batch, storage_policy=storage
        )
        self.strategy = Naive(
            model=self.net, optimizer=torch.optim.SGD(self.net.parameters(), lr=setup.lr),
            train_mb_size=setup.batch, train_epochs=1, eval_mb_size=32, device=setup.device,
            plugins=[replay], evaluator=EvaluationPlugin(),
        )  # fmt: skip
        first = setup.first
        parts = [range(first), range(first, first + 100)]
        tasks = [as_classification_dataset(_Images(setup, p, augmented)) for p in parts]
        self.benchmark = benchmark_from_datasets(train=tasks, test=tasks[:1])
        self.split = split_online_stream
        self.experiences = self._stream()

    def _stream(self) -> Iterator[Any]:
        start, later = self.benchmark.train_stream
        sources = [[start], *[[later]] * 1000]
        for source in sources:
            yield from self.split(source, experience_size=self.setup.batch, shuffle=False)

    def step(self, k: int) -> None:
        """Train on the next experience of the online stream."""
        self.strategy.train(next(self.experiences), num_workers=0)

    def evaluate(self, n: int) -> int:
        """Run Avalanche's evaluation loop without metrics; return 0."""
        self.strategy.eval(self.benchmark.test_stream, num_workers=0)
        return 0
