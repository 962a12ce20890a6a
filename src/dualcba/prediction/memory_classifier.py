"""The classifiers of read-outs: class means, a discriminant or the bias of the logits.

They are computed in a pass over the memory, under BN or IBN statistics, and cached until the next
step. If predictions re-estimate IBN statistics from parts of the memory, features or
log-probabilities of the memory's rows are cached, and only those of new rows and of the parts are
computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from dualcba.memory import Memory, Reservoir
from dualcba.methods.debiased import Debiased
from dualcba.methods.discriminant import Discriminant
from dualcba.methods.nearest_mean import NearestMean, RowFeatures
from dualcba.normalization.refresh import MovingEstimate
from dualcba.options import IBNRefresh, Readout
from dualcba.prediction.batches import PREDICT_BATCH
from dualcba.training.parts import Parts

Way = tuple[str, IBNRefresh]
"""The statistics, `"bn"` or `"ibn"`, and how IBN statistics are re-estimated."""

Rule = NearestMean | Discriminant | Debiased

RULES: dict[Readout, type[Rule]] = {
    "ncm": NearestMean,
    "both": NearestMean,
    "lda": Discriminant,
    "both-lda": Discriminant,
    "debiased": Debiased,
}
"""The classifier of each read-out that uses the memory."""


def kept_rows(parts: Parts, readout: Readout) -> RowFeatures | None:
    """Return a cache for the values that the read-out computes for each row of the memory.

    The memory then marks written rows as out of date. None if the host does not know which rows are
    written.
    """
    memory = parts.context.memory
    if not isinstance(memory, Reservoir) or type(memory).write is not Memory.write:
        return None
    weight = cast(Tensor, parts.context.network.head.weight)
    rule = RULES[readout]
    rows = RowFeatures(rule.kept, memory.size, rule.width(weight), parts.engine.device)
    memory.stale = rows.stale
    return rows


class MemoryClassifier:
    """The classifier `rule` of a read-out, computed from the memory once per step and `Way`.

    `rows` is the cache of `kept_rows`, if any, and `moving` the estimate on which it is based.
    """

    def __init__(
        self, parts: Parts, rows: RowFeatures | None, moving: MovingEstimate, readout: Readout
    ) -> None:
        self.context = parts.context
        self.method = parts.method
        self.precision = parts.precision
        self.engine = parts.engine
        weight = cast(Tensor, self.context.network.head.weight)
        self.rule = RULES[readout](len(weight), weight.detach())
        self.rows = rows
        self.moving = moving
        self._cached: dict[Way, tuple[Tensor, ...]] = {}

    def forget(self) -> None:
        """Discard the cached rules, because network or memory may have changed."""
        self._cached = {}

    @contextmanager
    def under(self, way: Way, *, nested: bool) -> Iterator[None]:
        """Inside the context, `rule` is the rule for the current statistics of the layers.

        With `nested`, the previous rule is restored afterwards.
        """
        before = self.rule.save() if nested else None
        if way in self._cached:
            self.rule.restore(self._cached[way])
        else:
            if self.rows is not None and way == ("ibn", "parts") and self.moving.known:
                self._update_rows(self.rows)
            else:
                self._update()
            self._cached[way] = self.rule.save()
        try:
            yield
        finally:
            if before is not None:
                self.rule.restore(before)

    def _update_rows(self, rows: RowFeatures) -> None:
        """Update the cached rows that are out of date, and compute the rule from all rows."""
        memory, transform = self.context.memory, self.context.transform
        due = rows.stale[: memory.filled].nonzero().flatten()
        with self.precision.cast_weights(), self.precision.autocast():
            for part in torch.split(due.to(rows.values.device), PREDICT_BATCH):
                found = self.rule.rows(*self.method.outputs(transform(memory.samples(part))))
                rows.values.index_copy_(0, part, found)
        rows.stale[due] = False
        self.rule.update(rows.values[: memory.filled], memory.y[: memory.filled])
        self.rule.finish()

    def _update(self) -> None:
        """Compute the rule from all rows."""
        filled = self.context.memory.filled
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        if filled:
            self.engine.run(("ncm", filled), self._pass_over_memory)
            self.rule.finish()  # not part of a graph: a linear solver may wait for the device
        else:
            self.rule.clear()

    def _pass_over_memory(self) -> None:
        memory, transform = self.context.memory, self.context.transform
        rows = torch.split(torch.arange(memory.filled, device=memory.y.device), PREDICT_BATCH)
        with self.precision.cast_weights(), self.precision.autocast():
            outputs = [self.method.outputs(transform(memory.samples(r))) for r in rows]
            parts = [self.rule.rows(z, h) for z, h in outputs]
        self.rule.update(torch.cat(parts), memory.y[: memory.filled])
