"""Answers at any time: scores under BN or IBN statistics, the learner left as it was.

IBN re-estimates the running statistics in one pass over the memory (Algorithm 2). The estimate is
kept until the next step, and training never sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dualcba.engine import Engine
from dualcba.errors import one_of
from dualcba.methods import Context, Method
from dualcba.normalization.statistics import (
    RunningStatistics,
    evaluation_mode,
    grouped_statistics,
    ibn_momentum,
    temporary_momentum,
)
from dualcba.randomness import Array, Layout, generator, pack, unpack
from dualcba.training.forward import Forwards
from dualcba.training.precision import Precision, undisturbed

NORMS = ("bn", "ibn")
IBN_BATCH = 200
IBN_TOGETHER = 5  # so many batches of the IBN pass go through a GPU at once


class Answers:
    """Scores of a method, and the statistics that the network gives them under.

    `average`, `augment` and `seen_only` are the learner's `ibn_average`, `ibn_augment` and
    `seen_only`.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        forwards: Forwards,
        precision: Precision,
        engine: Engine,
        *,
        seed: int,
        average: str,
        augment: bool,
        seen_only: bool,
    ) -> None:
        self.context = context
        self.method = method
        self.forwards = forwards
        self.precision = precision
        self.engine = engine
        self.seed = seed
        self.average = average
        self.augment = augment
        self.seen_only = seen_only
        self.norms = [layer for layer in forwards.norms if layer.training]  # not those frozen
        self._running = RunningStatistics(self.norms)
        self._estimated = RunningStatistics(self.norms)
        self._estimated_at = -1  # the step of the estimate
        self._depth = 0  # how deep in `evaluating`

    def scores(self, x: Tensor) -> Tensor:
        """Raw samples on the device → (n, C) scores; call it within `evaluating`."""
        with self.precision.lowered(), self.precision.autocast():
            scores = self.method.scores(self.context.transform(x)).float()
        if not self.seen_only:
            return scores
        seen = self.context.sets.seen
        return scores.masked_fill(seen.any() & ~seen, -torch.inf)  # all, as long as there is none

    @contextmanager
    def evaluating(self, norm: str, step: int) -> Iterator[None]:
        """Evaluation mode under BN or IBN statistics; afterwards all is as it was."""
        one_of(NORMS, norm=norm)
        incremental = norm == "ibn" and bool(self.norms) and self.context.memory.filled > 1
        with undisturbed(self.engine.device), self.engine.scope(), torch.no_grad():
            running = self._running if self._depth == 0 else RunningStatistics(self.norms)
            self._depth += 1
            if incremental:
                running.save()
            try:
                if incremental:
                    self._estimate(step)
                with evaluation_mode(self.context.network):
                    with self.precision.autocast():
                        self.method.before_scores()
                    yield
            finally:
                self._depth -= 1
                if incremental:
                    running.restore()

    def forget(self) -> None:
        """Estimate IBN's statistics anew next time, though there was no step."""
        self._estimated_at = -1

    def _estimate(self, step: int) -> None:
        """IBN: statistics from one shuffled pass over the memory, kept until the next step."""
        if self._estimated_at == step:
            self._estimated.restore()
            return
        filled, transform = self.context.memory.filled, self.context.transform
        rng = generator(self.seed, "ibn", step)
        parts: dict[str, Array] = {"rows": rng.permutation(filled)}
        if self.augment and transform.random:
            parts["augment"] = transform.draw(rng, filled)
        packet, layout = pack(parts)
        run = partial(self._pass_over_memory, layout=layout)
        self.engine.run(("ibn", layout), run, packet)
        self._estimated.save()
        self._estimated_at = step

    def _pass_over_memory(self, packet: Tensor, *, layout: Layout) -> None:
        draw = unpack(packet, layout)
        rows, augment = draw["rows"], draw.get("augment")
        size, most = self._portion()
        network, norms = self.context.network, self.norms
        with (
            evaluation_mode(network, norms),
            temporary_momentum(norms) as set_momentum,
            torch.no_grad(),
            self.precision.lowered(),
            self.precision.autocast(),
        ):
            for k, groups, part in _portions(len(rows), size, most):
                set_momentum(ibn_momentum(k + 1, self.average))
                x = self.context.memory.x.index_select(0, rows[part])
                with (
                    grouped_statistics(norms, groups, cumulative=True)
                    if most > 1
                    else nullcontext()
                ):
                    network(self.context.transform(x, None if augment is None else augment[part]))

    def _portion(self) -> tuple[int, int]:
        """How large the batches of the pass are, and how many at most go together.

        A moving average has the training's batches; for a plain one larger batches do as well.
        """
        if self.average != "cumulative":
            return max(2, self.context.batch_size), 1
        together = self.forwards.samplewise and self.engine.device.type == "cuda"
        return IBN_BATCH, IBN_TOGETHER if together else 1


def _portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """n rows in parts of about `size`: how many came before, how many pass together, their rows.

    No row is alone in its part: it would have no batch statistics.

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
