"""Compute scores of samples under BN or IBN statistics, and restore everything afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import get_args

import torch
from torch import Tensor, nn

from dualcba.errors import expected, one_of
from dualcba.methods.debiased import Debiased
from dualcba.methods.discriminant import Discriminant
from dualcba.methods.nearest_mean import both_read_outs
from dualcba.methods.scorers import Corrected, Discriminants, NearestMeans, scorer_of
from dualcba.methods.wrapper import outputs_scorer
from dualcba.normalization.statistics import RunningStatistics, evaluation_mode
from dualcba.options import IBNRefresh, Readout, Statistics
from dualcba.options.choices import PLAIN_READOUTS
from dualcba.prediction.batches import PREDICT_BATCH
from dualcba.prediction.memory_classifier import RULES, MemoryClassifier, kept_rows
from dualcba.prediction.memory_statistics import MemoryStatistics
from dualcba.training.parts import Parts
from dualcba.training.precision import default_modes

STATISTICS: tuple[Statistics, ...] = get_args(Statistics)
"""The statistics of normalisation layers in evaluation: of training (BN) or the memory (IBN)."""


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
        self.precision = parts.precision
        self.engine = parts.engine
        self.adaptor = parts.outer_loop.adaptor if readout == "adapted" else None
        self.trunk = parts.trunk
        self.readout = readout
        whole = average in ("literal", "continued") or parts.engine.ranks is not None
        self.refresh: IBNRefresh = "full" if whole else refresh
        self.seen_only = seen_only
        self.flip = flip
        by_memory = readout in RULES
        self.both = readout in ("both", "both-lda")
        rows = kept_rows(parts, readout) if by_memory and self.refresh == "parts" else None
        self.ibn = MemoryStatistics(parts, rows, seed=seed, average=average, augment=augment)
        self.classifier = (
            MemoryClassifier(parts, rows, self.ibn.moving, readout) if by_memory else None
        )
        self._running = RunningStatistics(self.ibn.layers)
        self._depth = 0  # the number of nested `evaluating` contexts
        self._training: RunningStatistics | None = None  # saved while the layers have IBN's

    def of(self, parts: Parts) -> Predictor:
        """Return a predictor with the same options for other parts."""
        return Predictor(
            parts, seed=self.ibn.seed, average=self.ibn.memory_pass.average,
            augment=self.ibn.memory_pass.augment, seen_only=self.seen_only, readout=self.readout,
            refresh=self.refresh, flip=self.flip,
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
        """Return (n, C) scores of raw samples, for all classes and without flips."""
        inputs = self.context.transform(x if self.trunk is None else self.trunk(x))
        if self.classifier is None:
            z = self.method.scores(inputs).float()
            return z if self.adaptor is None else self.adaptor.adapt(z, self.adaptor(z))
        z, h = self.method.outputs(inputs)
        scores = self.classifier.rule.scores(z, h).float()
        return both_read_outs(z, scores) if self.both else scores

    def scorer(self) -> nn.Module:
        """Return a module with the current scores of normalised inputs; call in `evaluating`."""
        if self.adaptor is not None:
            wanted = f"{PLAIN_READOUTS} for snapshots and exports"
            raise ValueError(expected("readout", self.readout, wanted))
        if self.classifier is None:
            return scorer_of(self.method)
        rule, logits = self.classifier.rule, outputs_scorer(self.method)
        if isinstance(rule, Debiased):
            return Corrected(logits, torch.ones_like(rule.bias), rule.bias)
        if isinstance(rule, Discriminant):
            return Discriminants(logits, rule.weight, rule.bias, both=self.both)
        return NearestMeans(logits, rule.means, rule.has_mean, both=self.both)

    def scores_of(self, samples: Tensor, statistics: str, step: int) -> Tensor:
        """Return (n, C) scores on the host of any number of raw samples on any device."""
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

        `refresh` says whether to estimate IBN statistics from the whole memory or from parts.
        """
        one_of(STATISTICS, statistics=statistics)
        estimate = statistics == "ibn" and self.ibn.exist(refresh)
        with default_modes(self.engine.device), self.engine.scope(), torch.no_grad():
            running = self._running if self._depth == 0 else RunningStatistics(self.ibn.layers)
            outer, self._depth = self._training, self._depth + 1
            changes = estimate or outer is not None
            if changes:
                running.save()
            self._training = (outer or running) if estimate else None
            predicting = self.method.predicting() if self._depth == 1 else nullcontext()
            try:
                with predicting:
                    if estimate and refresh == "full":
                        self.ibn.estimate(step)
                    elif estimate:
                        self.ibn.estimate_parts(step)
                    elif outer is not None:
                        outer.restore()
                    with evaluation_mode(self.context.network):
                        self._before_scores()
                        with self._memory_classifier(statistics, refresh):
                            yield
            finally:
                self._depth, self._training = self._depth - 1, outer
                if changes:
                    running.restore()
                if changes and self._depth:
                    self._before_scores()

    def _memory_classifier(
        self, statistics: str, refresh: IBNRefresh
    ) -> AbstractContextManager[None]:
        """Return a context in which the rule of the read-out is up to date, if it has a rule."""
        if self.classifier is None:
            return nullcontext()
        return self.classifier.under((statistics, refresh), nested=self._depth > 1)

    def _before_scores(self) -> None:
        with self.precision.autocast():
            self.method.before_scores()

    def check_outside(self, call: str) -> None:
        """Raise inside `evaluating`, whose end would undo changes of statistics by the call."""
        if self._depth:
            raise ValueError(f"{call} was called inside evaluating, expected it after the context")

    def forget(self) -> None:
        """Discard the cached estimate and rule, because network or memory may have changed."""
        self.ibn.forget()
        if self.classifier is not None:
            self.classifier.forget()
