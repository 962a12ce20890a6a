"""What read-outs have from the memory: class means, a discriminant, the bias of the logits.

It is computed in a pass over the memory, under BN or IBN statistics, and cached until the next
step. Where predictions re-estimate IBN's statistics part by part, features or log-probabilities of
the memory's rows are kept, and those of new rows and of the parts are computed anew.
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
"""The statistics, and whether IBN's are those of the whole memory."""

Rule = NearestMean | Discriminant | Debiased

RULES: dict[Readout, type[Rule]] = {
    "ncm": NearestMean,
    "both": NearestMean,
    "lda": Discriminant,
    "both-lda": Discriminant,
    "debiased": Debiased,
}
"""How samples are classified in each read-out that uses the memory."""


def kept_rows(parts: Parts, readout: Readout) -> RowFeatures | None:
    """Return where to keep what the read-out needs of the memory's rows; new rows are marked.

    None if the rows that are written are not known on the host.
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
    """The rule of a read-out, computed from the memory once per step and way.

    `rows` are those of `kept_rows`, if any, and `moving` is the estimate that they follow.
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
        """Discard what is cached, because network or memory may have changed."""
        self._cached = {}

    @contextmanager
    def under(self, way: Way, *, nested: bool) -> Iterator[None]:
        """Within the context, `rule` is that under the statistics that the layers have.

        If it is `nested`, the one of before is restored afterwards.
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
        """Compute what is kept of rows that are out of date, and the rule of all."""
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
