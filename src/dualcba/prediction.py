"""Predictions at any time: scores under BN or IBN statistics, without changing the learner.

IBN re-estimates the running statistics in one pass over the memory (Algorithm 2). The read-out
`ncm` computes class means in another pass, under BN or IBN statistics. Both are cached until the
next step and are never used in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.engine.packet import Array, Layout, pack, unpack
from dualcba.errors import one_of
from dualcba.methods.nearest_mean import NearestMean
from dualcba.normalization.statistics import (
    RunningStatistics,
    batch_norms,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
)
from dualcba.options import Readout, Statistics
from dualcba.randomness import generator
from dualcba.training.draws import MemoryDraw
from dualcba.training.parts import Parts
from dualcba.training.precision import default_modes

STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
"""Whose statistics the normalisation layers use in evaluation: training's, or the memory's."""

PREDICT_BATCH = 512
"""Samples per batch of a prediction."""

IBN_BATCH = 200
"""Samples per batch of the pass over the memory."""

IBN_TOGETHER = 5
"""Batches of that pass that go through a GPU at once."""


class Predictor:
    """Scores of a learner's method, under BN or IBN statistics.

    `average`, `augment`, `seen_only` and `readout` are the learner's `ibn_average`, `ibn_augment`,
    `seen_only` and `readout`.
    """

    def __init__(
        self, parts: Parts, *, seed: int, average: str, augment: bool, seen_only: bool,
        readout: Readout = "head",
    ) -> None:  # fmt: skip
        self.context = parts.context
        self.method = parts.method
        self.forward_pass = parts.forward_pass
        self.precision = parts.precision
        self.engine = parts.engine
        self.readout = readout
        self.seed = seed
        self.average = average
        self.augment = augment
        self.seen_only = seen_only
        others = [layer for network in parts.method.networks() for layer in batch_norms(network)]
        trained = [layer for layer in others if layer.training]
        self.layers = [*parts.forward_pass.trained_norm_layers, *trained]
        self._running = RunningStatistics(self.layers)
        self._estimated = RunningStatistics(self.layers)
        self._estimated_at = -1  # the step of the cached estimate
        self._depth = 0  # of nested `evaluating`
        weight = cast(Tensor, self.context.network.head.weight)
        self._nearest = NearestMean(len(weight), weight.detach()) if readout == "ncm" else None
        self._means: dict[str, tuple[Tensor, Tensor]] = {}  # cached, by statistics

    def of(self, parts: Parts) -> Predictor:
        """Return a predictor with the same options for other parts."""
        return Predictor(
            parts, seed=self.seed, average=self.average, augment=self.augment,
            seen_only=self.seen_only, readout=self.readout,
        )  # fmt: skip

    def scores(self, x: Tensor) -> Tensor:
        """Return (n, C) scores of raw samples on the device; call it inside `evaluating`."""
        with self.precision.cast_weights(), self.precision.autocast():
            inputs = self.context.transform(x)
            if self._nearest is None:
                scores = self.method.scores(inputs).float()
            else:
                scores = self._nearest.scores(*self.method.outputs(inputs)).float()
        if not self.seen_only:
            return scores
        seen = self.context.sets.seen
        return scores.masked_fill(seen.any() & ~seen, -torch.inf)  # all classes if none was seen

    def scores_of(self, samples: Tensor, statistics: str, step: int) -> Tensor:
        """Return (n, C) scores of any number of raw samples on any device, on the host."""
        if samples.is_cuda:  # inside `evaluating` the caller's stream is not the current one
            samples = self.engine.receive(samples)
        with self.evaluating(statistics, step):
            batches = torch.split(samples, PREDICT_BATCH)
            on_device = (b if b.is_cuda else self.engine.receive(b) for b in batches)
            return torch.cat([self.scores(b) for b in on_device]).cpu()

    @contextmanager
    def evaluating(self, statistics: str, step: int) -> Iterator[None]:
        """Evaluation mode under BN or IBN statistics; everything is restored afterwards."""
        one_of(STATISTICS, statistics=statistics)
        estimate = statistics == "ibn" and bool(self.layers) and self.context.memory.filled > 1
        with default_modes(self.engine.device), self.engine.scope(), torch.no_grad():
            running = self._running if self._depth == 0 else RunningStatistics(self.layers)
            self._depth += 1
            if estimate:
                running.save()
            predicting = self.method.predicting() if self._depth == 1 else nullcontext()
            try:
                with predicting:
                    if estimate:
                        self._estimate(step)
                    with evaluation_mode(self.context.network):
                        with self.precision.autocast():
                            self.method.before_scores()
                        with self._class_means(statistics):
                            yield
            finally:
                self._depth -= 1
                if estimate:
                    running.restore()

    def forget(self) -> None:
        """Discard the cached estimate and means, because network or memory may have changed."""
        self._estimated_at = -1
        self._means = {}

    @contextmanager
    def _class_means(self, statistics: str) -> Iterator[None]:
        """Set the class means of the read-out to those of the memory, computed once per step."""
        nearest = self._nearest
        if nearest is None:
            yield
            return
        before = nearest.save() if self._depth > 1 else None
        if statistics in self._means:
            nearest.restore(self._means[statistics])
        else:
            self._update_means(nearest)
            self._means[statistics] = nearest.save()
        try:
            yield
        finally:
            if before is not None:
                nearest.restore(before)

    def _update_means(self, nearest: NearestMean) -> None:
        filled = self.context.memory.filled
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        if filled:
            self.engine.run(("ncm", filled), partial(self._pass_for_means, nearest))
        else:
            nearest.clear()

    def _pass_for_means(self, nearest: NearestMean) -> None:
        memory, transform = self.context.memory, self.context.transform
        rows = torch.split(torch.arange(memory.filled, device=memory.y.device), PREDICT_BATCH)
        with self.precision.cast_weights(), self.precision.autocast():
            parts = [self.method.outputs(transform(memory.samples(r)))[1] for r in rows]
        nearest.update(torch.cat(parts), memory.y[: memory.filled])

    def _estimate(self, step: int) -> None:
        """Set the layers' statistics to those of the memory, estimated once per step."""
        if self._estimated_at == step:
            self._estimated.restore()
            return
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        packet, layout = pack(self._draw(step))
        run = partial(self._pass_over_memory, layout=layout)
        self.engine.run(("ibn", layout), run, packet)
        self._estimated.save()
        self._estimated_at = step

    def _draw(self, step: int) -> MemoryDraw[Array]:
        """Draw all samples of the memory in random order, and how to augment them."""
        filled, transform = self.context.memory.filled, self.context.transform
        rng = generator(self.seed, "ibn", step)
        rows = rng.permutation(filled)
        augmented = self.augment and transform.random
        return MemoryDraw(rows, transform.draw(rng, filled) if augmented else None)

    def _pass_over_memory(self, packet: Tensor, *, layout: Layout) -> None:
        drawn: MemoryDraw[Tensor] = unpack(packet, layout)
        size, most = self._batching()
        networks = nn.ModuleList([self.context.network, *self.method.networks()])
        layers = self.layers
        with (
            evaluation_mode(networks, layers),
            temporary_momentum(layers) as weigh,
            torch.no_grad(),
            self.precision.cast_weights(),
            self.precision.autocast(),
        ):
            self._estimated.clear()
            for k, groups, part in _portions(len(drawn.rows), size, most):
                weigh(ibn_momentum(k + 1, self.average))
                x = self.context.memory.samples(drawn.rows[part])
                augment = None if drawn.augment is None else drawn.augment[part]
                inputs = self.context.transform(x, augment)
                self.forward_pass.estimate(networks, layers, inputs, groups)

    def _batching(self) -> tuple[int, int]:
        """Return the size of the batches of the pass, and how many of them go together at most.

        A moving average depends on the batch size and uses that of training. A cumulative average
        does not, so its batches can be larger.
        """
        if self.average != "cumulative":
            return max(2, self.context.batch_size), 1
        together = self.forward_pass.samplewise and self.engine.device.type == "cuda"
        return IBN_BATCH, IBN_TOGETHER if together else 1


def _portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Split n rows into batches of about `size`, of which up to `most` pass together.

    Yields the number of batches before, the number of batches that pass together, and their rows.
    No batch has a single row, because it would have no batch statistics.

    >>> list(_portions(10, 4, 2))
    [(0, 1, slice(0, 4, None)), (1, 2, slice(4, 10, None))]
    """
    parts = min(math.ceil(n / size), n // 2)
    sizes = [len(part) for part in np.array_split(np.arange(n), parts)]
    k = start = 0
    while k < len(sizes):
        groups = min(most, sizes[k:].count(sizes[k]))
        stop = start + groups * sizes[k]
        yield k, groups, slice(start, stop)
        k, start = k + groups, stop
