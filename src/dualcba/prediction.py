"""Predictions at any time: scores under BN or IBN statistics, without changing the learner.

IBN re-estimates the running statistics in one pass over the memory (Algorithm 2). Predictions may
re-estimate them part by part instead (`ibn_refresh`); evaluation never does. The read-outs `ncm`
and `both` compute class means in another pass, under BN or IBN statistics; part by part, the
features of the memory's rows are kept, and those of new rows and of the parts are computed anew.
All are cached until the next step and are never used in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.engine.packet import Array, Layout, pack, unpack
from dualcba.errors import expected, one_of
from dualcba.memory import Memory, Reservoir
from dualcba.methods.nearest_mean import NearestMean, RowFeatures, both_read_outs
from dualcba.methods.scorers import NearestMeans, scorer_of
from dualcba.methods.wrapper import outputs_scorer
from dualcba.nets import Network
from dualcba.normalization.refresh import WEIGHT, Due, MovingEstimate
from dualcba.normalization.statistics import (
    RunningStatistics,
    batch_norms,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
)
from dualcba.options import IBNRefresh, Readout, Statistics
from dualcba.randomness import generator
from dualcba.training.draws import MemoryDraw
from dualcba.training.learner_state import ROWS
from dualcba.training.parts import Parts
from dualcba.training.precision import default_modes

STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
"""Whose statistics the normalisation layers use in evaluation: training's, or the memory's."""

Way = tuple[str, IBNRefresh]
"""The statistics, and whether IBN's are those of the whole memory."""

PREDICT_BATCH = 512
"""Samples per batch of a prediction."""

IBN_BATCH = 200
"""Samples per batch of the pass over the memory."""

IBN_TOGETHER = 5
"""Batches of that pass that go through a GPU at once."""


class Predictor:
    """Scores of a learner's method, under BN or IBN statistics.

    `average`, `augment`, `refresh`, `flip`, `seen_only` and `readout` are the learner's
    `ibn_average`, `ibn_augment`, `ibn_refresh`, `test_flip`, `seen_only` and `readout`.
    """

    def __init__(
        self, parts: Parts, *, seed: int, average: str, augment: bool, seen_only: bool,
        readout: Readout = "head", refresh: IBNRefresh = "full", flip: bool = False,
    ) -> None:  # fmt: skip
        self.context = parts.context
        self.method = parts.method
        self.forward_pass = parts.forward_pass
        self.precision = parts.precision
        self.engine = parts.engine
        self.tasks = parts.tasks
        self.adaptor = parts.outer_loop.adaptor if readout == "adapted" else None
        self.trunk = parts.trunk
        self.readout = readout
        self.seed = seed
        self.average = average
        self.augment = augment
        whole = average == "literal" or parts.engine.ranks is not None
        self.refresh: IBNRefresh = "full" if whole else refresh
        self.seen_only = seen_only
        self.flip = flip
        others = [layer for network in parts.method.networks() for layer in batch_norms(network)]
        trained = [layer for layer in others if layer.training]
        self.layers = [*parts.forward_pass.trained_norm_layers, *trained]
        self._running = RunningStatistics(self.layers)
        self._estimated = RunningStatistics(self.layers)
        self._estimated_at = -1  # the step of the cached estimate
        self.moving = MovingEstimate(self.layers)  # of `refresh`
        self._followed_at = -1  # the step at which it has seen the weights
        self._matrices: list[Tensor] | None = None  # those weights
        self._depth = 0  # of nested `evaluating`
        self._training: RunningStatistics | None = None  # training's, while the layers have others
        weight = cast(Tensor, self.context.network.head.weight)
        by_means = readout in ("ncm", "both")
        self._nearest = NearestMean(len(weight), weight.detach()) if by_means else None
        self._means: dict[Way, tuple[Tensor, Tensor]] = {}  # cached
        self._rows: RowFeatures | None = None  # of the memory, for means under `refresh`
        if self._nearest is not None and self.refresh == "parts" and self._knows_rows():
            memory = self.context.memory
            self._rows = RowFeatures(memory.size, weight.shape[1], self.engine.device)
            memory.stale = self._rows.stale
            self.moving = MovingEstimate(self.layers, self._rows.tensors())

    def _knows_rows(self) -> bool:
        """Whether the rows that are written are known on the host."""
        memory = self.context.memory
        return isinstance(memory, Reservoir) and type(memory).write is Memory.write

    def of(self, parts: Parts) -> Predictor:
        """Return a predictor with the same options for other parts."""
        return Predictor(
            parts, seed=self.seed, average=self.average, augment=self.augment,
            seen_only=self.seen_only, readout=self.readout, refresh=self.refresh, flip=self.flip,
        )  # fmt: skip

    def scores(self, x: Tensor) -> Tensor:
        """Return (n, C) scores of raw samples on the device; call it inside `evaluating`."""
        with self.precision.cast_weights(), self.precision.autocast():
            scores = self._read_out(x)
            if self.flip:
                scores = (scores + self._read_out(x.flip(-1))) / 2
        if not self.seen_only:
            return scores
        seen = self.context.sets.seen
        return scores.masked_fill(seen.any() & ~seen, -torch.inf)  # all classes if none was seen

    def _read_out(self, x: Tensor) -> Tensor:
        """Return (n, C) scores of raw samples as they are."""
        inputs = self.context.transform(x if self.trunk is None else self.trunk(x))
        if self._nearest is None:
            z = self.method.scores(inputs).float()
            return z if self.adaptor is None else self.adaptor.adapt(z, self.adaptor(z))
        z, h = self.method.outputs(inputs)
        near = self._nearest.scores(z, h).float()
        return both_read_outs(z, near) if self.readout == "both" else near

    def scorer(self) -> nn.Module:
        """Return a module that scores normalised inputs as now; call it inside `evaluating`."""
        if self.adaptor is not None:
            wanted = "'head', 'ncm' or 'both' for snapshots and exports"
            raise ValueError(expected("readout", self.readout, wanted))
        if self._nearest is None:
            return scorer_of(self.method)
        means, both = self._nearest, self.readout == "both"
        return NearestMeans(outputs_scorer(self.method), means.means, means.has_mean, both=both)

    def scores_of(self, samples: Tensor, statistics: str, step: int) -> Tensor:
        """Return (n, C) scores of any number of raw samples on any device, on the host."""
        if samples.is_cuda:  # inside `evaluating` the caller's stream is not the current one
            samples = self.engine.receive(samples)
        with self.evaluating(statistics, step, self.refresh):
            batches = torch.split(samples, PREDICT_BATCH)
            on_device = (b if b.is_cuda else self.engine.receive(b) for b in batches)
            return torch.cat([self.scores(b) for b in on_device]).cpu()

    @contextmanager
    def evaluating(
        self, statistics: str, step: int, refresh: IBNRefresh = "full"
    ) -> Iterator[None]:
        """Evaluation mode under BN or IBN statistics; everything is restored afterwards.

        `refresh` says whether IBN's statistics are those of the whole memory.
        """
        one_of(STATISTICS, statistics=statistics)
        followed = bool(self.layers) or (refresh == "parts" and self._rows is not None)
        estimate = statistics == "ibn" and followed and self.context.memory.filled > 1
        with default_modes(self.engine.device), self.engine.scope(), torch.no_grad():
            running = self._running if self._depth == 0 else RunningStatistics(self.layers)
            outer, self._depth = self._training, self._depth + 1
            changes = estimate or outer is not None
            if changes:
                running.save()
            self._training = (outer or running) if estimate else None
            predicting = self.method.predicting() if self._depth == 1 else nullcontext()
            try:
                with predicting:
                    if estimate and refresh == "full":
                        self._estimate(step)
                    elif estimate:
                        self._estimate_parts(step)
                    elif outer is not None:
                        outer.restore()
                    with evaluation_mode(self.context.network):
                        self._before_scores()
                        with self._class_means((statistics, refresh)):
                            yield
            finally:
                self._depth, self._training = self._depth - 1, outer
                if changes:
                    running.restore()
                if changes and self._depth:
                    self._before_scores()

    def _before_scores(self) -> None:
        with self.precision.autocast():
            self.method.before_scores()

    def check_outside(self, call: str) -> None:
        """Raise inside `evaluating`, whose end would restore statistics of before the call."""
        if self._depth:
            raise ValueError(f"{call} was called inside evaluating, expected it after the context")

    def forget(self) -> None:
        """Discard the cached estimate and means, because network or memory may have changed."""
        self._estimated_at = self._followed_at = -1
        self._means = {}

    def save(self) -> dict[str, Any] | None:
        """Return the estimate that the next predictions depend on; None if there is none."""
        if self.moving.known:
            self._follow()
        return self.moving.state_dict()

    def _follow(self) -> None:
        """Let the estimate see the weights now, so that it need not know earlier ones."""
        modes = default_modes(self.engine.device)
        with modes, self.engine.scope(), torch.no_grad(), self.method.predicting():
            self.moving.follow(self._weights())

    def load(self, estimate: Mapping[str, Any] | None, step: int) -> None:
        """Go on from the estimate in the state of a learner at a step; None if it has none."""
        self.forget()
        with self.engine.scope():
            self.moving.load_state_dict(estimate, step * self.context.batch_size)
        saved = {} if estimate is None else estimate["tensors"]
        if self._rows is not None and not saved.keys() >= set(ROWS):
            self._rows.stale.fill_(True)
        if estimate is not None:
            self._follow()

    @contextmanager
    def _class_means(self, statistics: Way) -> Iterator[None]:
        """Set the class means of the read-out to those of the memory, computed once per step."""
        nearest = self._nearest
        if nearest is None:
            yield
            return
        before = nearest.save() if self._depth > 1 else None
        if statistics in self._means:
            nearest.restore(self._means[statistics])
        else:
            if self._rows is not None and statistics == ("ibn", "parts") and self.moving.known:
                self._update_rows(self._rows, nearest)
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

    def _update_rows(self, rows: RowFeatures, nearest: NearestMean) -> None:
        """Compute the features of rows that are out of date, and the means of all."""
        memory, transform = self.context.memory, self.context.transform
        due = rows.stale[: memory.filled].nonzero().flatten()
        with self.precision.cast_weights(), self.precision.autocast():
            for part in torch.split(due.to(rows.values.device), PREDICT_BATCH):
                h = self.method.outputs(transform(memory.samples(part)))[1]
                rows.values.index_copy_(0, part, F.normalize(h.float()))
        rows.stale[due] = False
        nearest.update_from(rows.values[: memory.filled], memory.y[: memory.filled])

    def _pass_for_means(self, nearest: NearestMean) -> None:
        memory, transform = self.context.memory, self.context.transform
        rows = torch.split(torch.arange(memory.filled, device=memory.y.device), PREDICT_BATCH)
        with self.precision.cast_weights(), self.precision.autocast():
            parts = [self.method.outputs(transform(memory.samples(r)))[1] for r in rows]
        nearest.update(torch.cat(parts), memory.y[: memory.filled])

    def _estimate(self, step: int) -> None:
        """Set the layers' statistics to those of the memory, estimated once per step."""
        if self._estimated_at == step or not self.layers:
            self._estimated.restore()
            return
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        packet, layout = pack(self._draw(step))
        run = partial(self._pass_over_memory, layout=layout)
        self.engine.run(("ibn", layout), run, packet)
        self._estimated.save()
        self._estimated_at = step

    def _estimate_parts(self, step: int) -> None:
        """Set the layers' statistics to the moving estimate, after adding what is due to it."""
        moving, filled = self.moving, self.context.memory.filled
        task = (len(self.tasks.starts), self.tasks.open)
        if self._followed_at != step:
            moving.follow(self._weights())
            self._followed_at = step
        due = moving.due(filled, task)
        if due.whole:
            self._estimate(step)
            if self._rows is not None:  # before the estimate counts, in case of Ctrl-C
                self._rows.stale.fill_(True)
            moving.keep(task)
            return
        moving.statistics.restore()
        if due.parts:
            self._add_parts(due, step)
            moving.advance(due)

    def _weights(self) -> Tensor:
        """Return the trained weights that the layers' inputs may depend on, as one vector.

        Biases and the like are left out: those of normalisation would hide how matrices move.
        """
        if self._matrices is None:
            heads = {id(p) for network in self._networks() for p in network.head.parameters()}
            every = [p for network in self._networks() for p in network.parameters()]
            trained = [p for p in every if p.dim() > 1 and p.requires_grad and id(p) not in heads]
            self._matrices = [p.detach() for p in trained]
        if not self._matrices:
            return torch.zeros(0, device=self.engine.device)
        return torch.cat([p.reshape(-1) for p in self._matrices])

    def _add_parts(self, due: Due, step: int) -> None:
        rng, filled = generator(self.seed, "ibn parts", step), self.context.memory.filled
        for _ in range(due.parts):
            rows = rng.choice(filled, due.size, replace=False)
            if self._rows is not None:
                self._rows.stale[torch.from_numpy(rows)] = True
            if not self.layers:
                continue
            packet, layout = pack(self._augmented(rows, rng))
            run = partial(self._pass_over_part, layout=layout)
            self.engine.run(("ibn part", layout), run, packet)

    def _draw(self, step: int) -> MemoryDraw[Array]:
        """Draw all samples of the memory in random order, and how to augment them."""
        rng = generator(self.seed, "ibn", step)
        return self._augmented(rng.permutation(self.context.memory.filled), rng)

    def _augmented(self, rows: Array, rng: np.random.Generator) -> MemoryDraw[Array]:
        """Draw how to augment rows of the memory."""
        transform = self.context.transform
        augmented = self.augment and transform.random
        return MemoryDraw(rows, transform.draw(rng, len(rows)) if augmented else None)

    def _pass_over_memory(self, packet: Tensor, *, layout: Layout) -> None:
        drawn: MemoryDraw[Tensor] = unpack(packet, layout)
        size, most = self._batching()
        with self._estimating() as weigh:
            self._estimated.clear()
            for k, groups, part in portions(len(drawn.rows), size, most):
                weigh(ibn_momentum(k + 1, self.average))
                self._pass(drawn, part, groups)

    def _pass_over_part(self, packet: Tensor, *, layout: Layout) -> None:
        with self._estimating() as weigh:
            weigh(WEIGHT)
            self._pass(unpack(packet, layout), slice(None))

    @contextmanager
    def _estimating(self) -> Iterator[Callable[[float], None]]:
        """Let the layers average batch statistics; yield a function that sets their momentum."""
        with (
            evaluation_mode(nn.ModuleList(self._networks()), self.layers),
            temporary_momentum(self.layers) as weigh,
            torch.no_grad(),
            self.precision.cast_weights(),
            self.precision.autocast(),
        ):
            yield weigh

    def _networks(self) -> list[Network]:
        return [self.context.network, *self.method.networks()]

    def _pass(self, drawn: MemoryDraw[Tensor], part: slice, groups: int = 1) -> None:
        """Pass a part of drawn samples, in equal groups, through all networks."""
        x = self.context.memory.samples(drawn.rows[part])
        inputs = self.context.transform(x, None if drawn.augment is None else drawn.augment[part])
        self.forward_pass.estimate(self._networks(), self.layers, inputs, groups)

    def _batching(self) -> tuple[int, int]:
        """Return the size of the batches of the pass, and how many of them go together at most.

        A moving average depends on the batch size and uses that of training. A cumulative average
        does not, so its batches can be larger.
        """
        if self.average != "cumulative":
            return max(2, self.context.batch_size), 1
        together = self.forward_pass.samplewise and self.engine.device.type == "cuda"
        return IBN_BATCH, IBN_TOGETHER if together else 1


def portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Split n rows into batches of about `size`, of which up to `most` pass together.

    Yields the number of batches before, the number of batches that pass together, and their rows.
    No batch has a single row, because it would have no batch statistics.

    >>> list(portions(10, 4, 2))
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
