"""The class means of the memory, for the read-outs `ncm` and `both`, or the discriminant of `lda`.

They are computed in a pass over the memory, under BN or IBN statistics, and cached until the next
step. Where predictions re-estimate IBN's statistics part by part, the features of the memory's rows
are kept, and those of new rows and of the parts are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.memory import Memory, Reservoir
from dualcba.methods.discriminant import Discriminant
from dualcba.methods.nearest_mean import NearestMean, RowFeatures
from dualcba.normalization.refresh import MovingEstimate
from dualcba.options import IBNRefresh, Readout
from dualcba.prediction.batches import PREDICT_BATCH
from dualcba.training.parts import Parts

Way = tuple[str, IBNRefresh]
"""The statistics, and whether IBN's are those of the whole memory."""


CLASSIFIERS: dict[Readout, type[NearestMean] | type[Discriminant]] = {
    "ncm": NearestMean,
    "both": NearestMean,
    "lda": Discriminant,
    "both-lda": Discriminant,
}
"""What classifies the features in each read-out that uses those of the memory."""


def kept_rows(parts: Parts) -> RowFeatures | None:
    """Return where to keep the features of the memory's rows, and let the memory mark new rows.

    None if the rows that are written are not known on the host.
    """
    memory = parts.context.memory
    if not isinstance(memory, Reservoir) or type(memory).write is not Memory.write:
        return None
    weight = cast(Tensor, parts.context.network.head.weight)
    rows = RowFeatures(memory.size, weight.shape[1], parts.engine.device)
    memory.stale = rows.stale
    return rows


class ClassMeans:
    """The class means of the memory, or a discriminant, computed once per step and way.

    `rows` are the features of `kept_rows`, if any, and `moving` is the estimate that they follow.
    """

    def __init__(
        self, parts: Parts, rows: RowFeatures | None, moving: MovingEstimate, readout: Readout
    ) -> None:
        self.context = parts.context
        self.method = parts.method
        self.precision = parts.precision
        self.engine = parts.engine
        weight = cast(Tensor, self.context.network.head.weight)
        self.nearest = CLASSIFIERS[readout](len(weight), weight.detach())
        self.rows = rows
        self.moving = moving
        self._cached: dict[Way, tuple[Tensor, Tensor]] = {}

    def forget(self) -> None:
        """Discard the cached means, because network or memory may have changed."""
        self._cached = {}

    @contextmanager
    def under(self, way: Way, *, nested: bool) -> Iterator[None]:
        """Within the context, `nearest` has the means under the statistics that the layers have.

        If it is `nested`, the means of before are restored afterwards.
        """
        before = self.nearest.save() if nested else None
        if way in self._cached:
            self.nearest.restore(self._cached[way])
        else:
            if self.rows is not None and way == ("ibn", "parts") and self.moving.known:
                self._update_rows(self.rows)
            else:
                self._update()
            self._cached[way] = self.nearest.save()
        try:
            yield
        finally:
            if before is not None:
                self.nearest.restore(before)

    def _update_rows(self, rows: RowFeatures) -> None:
        """Compute the features of rows that are out of date, and the means of all."""
        memory, transform = self.context.memory, self.context.transform
        due = rows.stale[: memory.filled].nonzero().flatten()
        with self.precision.cast_weights(), self.precision.autocast():
            for part in torch.split(due.to(rows.values.device), PREDICT_BATCH):
                h = self.method.outputs(transform(memory.samples(part)))[1]
                rows.values.index_copy_(0, part, F.normalize(h.float()))
        rows.stale[due] = False
        self.nearest.update_from(rows.values[: memory.filled], memory.y[: memory.filled])
        self.nearest.finish()

    def _update(self) -> None:
        """Compute the features of all rows, and their means."""
        filled = self.context.memory.filled
        if self.engine.ranks is not None:
            self.engine.ranks.exchange("predict", None)
        if filled:
            self.engine.run(("ncm", filled), self._pass_over_memory)
            self.nearest.finish()  # not part of a graph: a linear solver may wait for the device
        else:
            self.nearest.clear()

    def _pass_over_memory(self) -> None:
        memory, transform = self.context.memory, self.context.transform
        rows = torch.split(torch.arange(memory.filled, device=memory.y.device), PREDICT_BATCH)
        with self.precision.cast_weights(), self.precision.autocast():
            parts = [self.method.outputs(transform(memory.samples(r)))[1] for r in rows]
        self.nearest.update(torch.cat(parts), memory.y[: memory.filled])
