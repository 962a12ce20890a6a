"""From raw samples to logits: a step's batches read, augmented and put through the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dualcba.data import Transform
from dualcba.losses import Batch
from dualcba.methods import Context, Method
from dualcba.normalization.layers import TaskAware, sample_tasks
from dualcba.normalization.statistics import (
    batch_norms,
    evaluation_mode,
    grouped_statistics,
    without_tracking,
)

Raw = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Samples, labels and what is stored beside them."""

Outputs = tuple[Tensor, Tensor]
"""Logits and features."""


class Forwards:
    """Forwards by batch statistics, as in training.

    Batches pass together if `concat`, so that their statistics mix; otherwise as if one by one.
    """

    def __init__(
        self, context: Context, method: Method, views: Mapping[str, Transform], *, concat: bool
    ) -> None:
        self.context = context
        self.method = method
        self.views = views
        self.concat = concat
        self.norms = batch_norms(context.network)
        self.aware = [layer for layer in self.norms if isinstance(layer, TaskAware)]
        self.samplewise = context.network.samplewise

    def inner(self, x: Tensor, y: Tensor, draw: Mapping[str, Tensor]) -> list[Batch]:
        """B_trn: the new batch, with other views of it, and each memory draw."""
        names = ["new", *(f"mem{i}" for i in range(self.method.draws) if f"mem{i}" in draw)]
        raw: list[Raw] = [(x, y, {})]
        raw += [self.context.memory.read(draw[name]) for name in names[1:]]
        seen = self.augmented([r[0] for r in raw], [draw.get(f"{n}.augment") for n in names])
        first = self.method.labelled
        for name, other in self.views.items():
            raw.append((x[first:], y[first:], {}))
            seen.append(other(x[first:], draw[f"view.{name}"]))
        with self.context.autocast():
            outputs = self.through(seen, [r[1] for r in raw])
        new, *rest = _batches(seen, raw, outputs)
        mem, others = rest[: len(names) - 1], rest[len(names) - 1 :]
        if others:
            new.views = dict(zip(self.views, others, strict=True))
        return [new, *mem]

    def outer(self, draw: Mapping[str, Tensor]) -> Batch:
        """B_buf: a fresh memory draw through the network, which takes no notice of it."""
        x, y, columns = self.context.memory.read(draw["outer"])
        view = self.context.transform(x, draw.get("outer.augment"))
        with torch.no_grad(), without_tracking(self.norms), self.context.autocast():
            z, h = self.outputs(view, y)
        return Batch(view, y, z, h, columns)

    def augmented(self, raw: list[Tensor], params: list[Tensor | None]) -> list[Tensor]:
        """All raw batches augmented at once."""
        drawn = [p for p in params if p is not None]
        views = self.context.transform(torch.cat(raw), torch.cat(drawn) if drawn else None)
        return list(torch.split(views, [len(part) for part in raw]))

    def through(self, views: Sequence[Tensor], labels: Sequence[Tensor]) -> Sequence[Outputs]:
        """Logits and features of each view."""
        sizes = [len(v) for v in views]
        parts, labels = self._apart(views), self._apart(labels)
        alike = len(parts[0]) > 1 and len({len(part) for part in parts}) == 1
        if not self.concat and not (alike and self.samplewise):
            z, h = map(torch.cat, zip(*self._one_by_one(parts, labels), strict=True))
        else:
            apart = nullcontext() if self.concat else grouped_statistics(self.norms, len(parts))
            with apart:
                z, h = self.outputs(torch.cat(parts), torch.cat(labels))
        return list(zip(torch.split(z, sizes), torch.split(h, sizes), strict=True))

    def _apart(self, views: Sequence[Tensor]) -> list[Tensor]:
        """What has statistics of its own; labelled samples have, where they lead a batch."""
        first = self.method.labelled
        led = first and len(views[0]) > first
        new = views[0].tensor_split([first]) if led else [views[0]]
        return [*new, *views[1:]]

    def _one_by_one(self, views: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Outputs]:
        """Each view in a forward of its own; lone samples last.

        Those take running statistics, which no later forward may move before the backward.
        """
        outputs: dict[int, Outputs] = {}
        for i in sorted(range(len(views)), key=lambda i: len(views[i]) == 1):
            outputs[i] = self.outputs(views[i], labels[i])
        return [outputs[i] for i in range(len(views))]

    def outputs(self, view: Tensor, y: Tensor) -> Outputs:
        """Logits and features; a lone sample has no batch statistics and takes the running ones."""
        network = self.context.network
        mode = evaluation_mode(network) if len(view) == 1 else nullcontext()
        with mode, self.tell_tasks(y):
            return network(view)  # type: ignore[no-any-return]

    def tell_tasks(self, y: Tensor) -> AbstractContextManager[object]:
        """Let layers that ask for it know the task of each sample."""
        if not self.aware:
            return nullcontext()
        owner = self.context.sets.owner
        return sample_tasks(self.aware, torch.where(y < 0, owner.max(), owner[y.clamp(min=0)]))


def _batches(
    views: Sequence[Tensor], raw: Sequence[Raw], outputs: Sequence[Outputs]
) -> list[Batch]:
    """Rows count on from batch to batch."""
    batches, start = [], 0
    for view, (_, y, columns), (z, h) in zip(views, raw, outputs, strict=True):
        rows = slice(start, start + len(view))
        batches.append(Batch(view, y, z, h, columns, rows))
        start = rows.stop
    return batches
