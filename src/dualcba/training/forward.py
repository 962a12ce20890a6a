"""From raw samples to logits: the batches of a step are read, augmented and passed forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import functional_call

from dualcba.data import Transform
from dualcba.engine.torch_private import BatchNormBase
from dualcba.losses import Batch
from dualcba.memory import Pool
from dualcba.methods import Context, Method
from dualcba.nets import Network
from dualcba.normalization.layers import TaskAware, sample_tasks
from dualcba.normalization.statistics import (
    batch_norms,
    evaluation_mode,
    grouped_statistics,
    without_tracking,
)
from dualcba.training.draws import BalancedDraw, BatchDraws, ChosenDraw, MemoryDraw

Raw = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Samples, labels and the columns stored with them."""

Outputs = tuple[Tensor, Tensor]
"""Logits and features."""


class ForwardPass:
    """Forward passes with batch statistics, as in training.

    With `concat` all batches pass the network together and share batch statistics. Otherwise each
    batch has statistics of its own, and so have the views of all samples. `tracking` is the
    learner's option of that name. `cast_weights` casts the weights of a network within a context.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        views: Mapping[str, Transform],
        *,
        concat: bool,
        tracking: str = "all",
        cast_weights: Callable[[Network], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        self.context = context
        self.method = method
        self.views = views
        self.concat = concat
        self.tracking = tracking
        self.norm_layers = batch_norms(context.network)
        # those in evaluation mode were frozen by the caller and keep their statistics
        self.trained_norm_layers = [layer for layer in self.norm_layers if layer.training]
        self._modes = [(module, module.training) for module in context.network.modules()]
        self.task_aware = [layer for layer in self.norm_layers if isinstance(layer, TaskAware)]
        self.samplewise = context.network.samplewise
        self.cast_weights = cast_weights
        self._per_view = 1  # the number of inner batches in this step, without their views

    def restore_modes(self) -> None:
        """Put the network back into training mode, if the caller has put it into evaluation mode.

        Layers that were in evaluation mode from the start stay so.
        """
        if not self.context.network.module.training:
            for module, mode in self._modes:
                module.training = mode

    def inner_batches(
        self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]
    ) -> tuple[Batch, list[Batch]]:
        """B_trn: the new batch, with its other views, and the memory draws."""
        draws, weights = self._memory_batches(x, y, drawn)
        raw: list[Raw] = [(x, y, {}), *draws]
        params = [drawn.new_augment, *(draw.augment for draw in drawn.memory)]
        inputs = self.augmented([samples for samples, _, _ in raw], params)
        viewed = self._sources(raw)
        self._per_view = len(raw)
        for made in self._views(viewed, drawn) if self.views else ():
            inputs += made
            raw += viewed
        with self.context.autocast():
            outputs = self.through(inputs, [labels for _, labels, _ in raw])
        batches = _batches(inputs, raw, outputs)
        new, *mem = batches[: 1 + len(drawn.memory)]
        rest = batches[1 + len(drawn.memory) :]
        for k in range(len(viewed) if self.views else 0):
            views = dict(zip(self.views, rest[k :: len(viewed)], strict=True))
            (new, *mem)[k].views = views
        for batch, each in zip(mem, weights, strict=False):  # there may be no weights
            for one in (batch, *batch.views.values()):
                one.each = each
        return new, mem

    def _memory_batches(
        self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]
    ) -> tuple[list[Raw], list[Tensor]]:
        """Read the memory draws, and return their weights if the method chooses the rows."""
        plain = [draw.rows for draw in drawn.memory if isinstance(draw, MemoryDraw)]
        u = [draw.u for draw in drawn.memory if isinstance(draw, ChosenDraw)]
        if not u:
            return [self.context.memory.read(rows) for rows in plain], []
        pool = self._pool(y, drawn.filled)
        chosen = self.method.choose(pool, u)
        return [pool.read(rows, x) for rows, _ in chosen], [each for _, each in chosen]

    def _sources(self, raw: Sequence[Raw]) -> list[Raw]:
        """Return the raw batches that have views: unlabelled new samples, and memory draws."""
        first, (x, y, _) = self.method.labelled, raw[0]
        draws = raw[1:] if self.method.memory_views else ()
        return [(x[first:], y[first:], {}), *((x, y, {}) for x, y, _ in draws)]

    def _views(self, raw: Sequence[Raw], drawn: BatchDraws[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the inputs of each view, for each raw batch."""
        x, sizes = _joined([samples for samples, _, _ in raw]), [len(y) for _, y, _ in raw]
        params = [drawn.views, *(draw.views for draw in drawn.memory)][: len(raw)]
        for name, view in self.views.items():
            given = _joined([p[name] for p in params]) if view.random else None
            if self.method.chained:
                x = x if given is None else view.augment(x, given)
            inputs = view.normalize(x) if self.method.chained else view(x, given)
            yield list(torch.split(inputs, sizes))

    def outer_batch(self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]) -> Batch:
        """B_buf: a fresh draw from the memory, or evenly over the classes of memory and new batch.

        Its `frequencies` are the expected samples of each class in a draw as large as what it is
        drawn from, if the step has drawn `filled`. Running statistics are left unchanged.
        """
        draw = drawn.outer_batch
        assert draw is not None
        fresh = frequencies = None
        if isinstance(draw, BalancedDraw):
            pool = self._pool(y, drawn.filled)
            rows = pool.balanced_rows(draw.u)
            fresh, frequencies = pool.is_new(rows), pool.balanced_counts()
            x, y, columns = pool.read(rows, x)
        else:
            if drawn.filled is not None:
                frequencies = self._pool(y[:0], drawn.filled).counts
            x, y, columns = self.context.memory.read(draw.rows)
        inputs = self.context.transform(x, draw.augment)
        with without_tracking(self.norm_layers), self.context.autocast():
            z, h = self.outputs(inputs, y)
        if fresh is not None:  # samples of the new batch: nothing is stored with them yet
            columns = {k: torch.where(fresh[:, None], z.to(c), c) for k, c in columns.items()}
        return Batch(inputs, y, z, h, columns, frequencies=frequencies)

    def _pool(self, y: Tensor, filled: Tensor | None) -> Pool:
        assert filled is not None
        return Pool(self.context.memory, filled, y, self.context.sets.num_classes)

    def augmented(self, raw: list[Tensor], params: list[Tensor | None]) -> list[Tensor]:
        """Augment and normalise all raw batches in one call."""
        drawn = [p for p in params if p is not None]
        inputs = self.context.transform(torch.cat(raw), torch.cat(drawn) if drawn else None)
        return list(torch.split(inputs, [len(part) for part in raw]))

    def through(
        self, inputs: Sequence[Tensor], labels: Sequence[Tensor], network: Network | None = None
    ) -> Sequence[Outputs]:
        """Return logits and features of each batch, by default of the trained network."""
        sizes = [len(v) for v in inputs]
        parts, labels = self._with_own_statistics(inputs), self._with_own_statistics(labels)
        tracked = self._tracked(len(inputs), len(parts))
        layers = self.norm_layers if network is None else batch_norms(network)
        concat = self.concat and not self.method.memory_views  # then each view is one part
        alike = len(parts[0]) > 1 and len({len(part) for part in parts}) == 1
        together = alike and self.samplewise and all(tracked)
        if not concat and not together:
            each = self._one_by_one(parts, labels, tracked, network, layers)
            z, h = map(torch.cat, zip(*each, strict=True))
        else:
            groups = nullcontext() if concat else grouped_statistics(layers, len(parts))
            with groups:
                z, h = self.outputs(torch.cat(parts), torch.cat(labels), network=network)
        return list(zip(torch.split(z, sizes), torch.split(h, sizes), strict=True))

    def passes(self, network: Network, batches: Sequence[Batch]) -> list[Outputs]:
        """Return logits and features of inner batches by another network; see `Context.passes`."""
        with self.context.autocast(), self.cast_weights(network):
            return list(self.through([b.x for b in batches], [b.y for b in batches], network))

    def _with_own_statistics(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts that have batch statistics of their own.

        Each batch is one. The new batch is split where labelled samples lead it. With `concat` and
        views of all samples, all batches of one view are a part.
        """
        first = self.method.labelled
        led = first and len(batches[0]) > first
        new = batches[0].tensor_split([first]) if led else [batches[0]]
        parts = [*new, *batches[1:]]
        if not (self.concat and self.method.memory_views):
            return parts
        count = self._per_view
        return [_joined(parts[k : k + count]) for k in range(0, len(parts), count)]

    def _tracked(self, batches: int, parts: int) -> list[bool]:
        """Return whether each part updates the running statistics; the new batch has 1 or 2."""
        if self.tracking == "all":
            return [True] * parts
        own = parts - batches + 1
        views = len(self.views) * (self._per_view if self.method.memory_views else 1)
        memory = parts - own - views
        if self.tracking == "memory" and not memory:
            return [True] * parts
        new = [self.tracking == "labelled"] + [False] * (own - 1)
        return [*new, *[True] * memory, *[False] * views]

    def _one_by_one(
        self,
        inputs: Sequence[Tensor],
        labels: Sequence[Tensor],
        tracked: Sequence[bool],
        network: Network | None,
        layers: Sequence[BatchNormBase],
    ) -> list[Outputs]:
        """Pass each batch separately, batches of one sample last.

        Such a batch uses the running statistics, which must not change between its forward and
        the backward.
        """
        outputs: dict[int, Outputs] = {}
        for i in sorted(range(len(inputs)), key=lambda i: len(inputs[i]) == 1):
            with nullcontext() if tracked[i] else without_tracking(layers):
                outputs[i] = self.outputs(inputs[i], labels[i], network=network)
        return [outputs[i] for i in range(len(inputs))]

    def outputs(
        self,
        inputs: Tensor,
        y: Tensor,
        parameters: Mapping[str, Tensor] | None = None,
        *,
        network: Network | None = None,
    ) -> Outputs:
        """Return logits and features, with `parameters` in the place of the network's own if given.

        A single sample has no batch statistics; the running statistics are used instead. `network`
        is by default the trained one; another one is not given the tasks of the samples.
        """
        tasks = self.sample_tasks(y) if network is None else nullcontext()
        network = network or self.context.network
        mode = evaluation_mode(network) if len(inputs) == 1 else nullcontext()
        with mode, tasks:
            if parameters is None:
                return network(inputs)  # type: ignore[no-any-return]
            return functional_call(network, dict(parameters), (inputs,))  # type: ignore[no-any-return]

    def sample_tasks(self, y: Tensor) -> AbstractContextManager[object]:
        """Give the task of each sample to the layers that use it; unlabelled: the newest task."""
        if not self.task_aware:
            return nullcontext()
        owner = self.context.sets.owner
        tasks = torch.where(y < 0, owner.max(), owner[y.clamp(min=0)])
        return sample_tasks(self.task_aware, tasks)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _batches(
    inputs: Sequence[Tensor], raw: Sequence[Raw], outputs: Sequence[Outputs]
) -> list[Batch]:
    """Make batches whose `rows` are consecutive."""
    batches, start = [], 0
    for x, (_, y, columns), (z, h) in zip(inputs, raw, outputs, strict=True):
        rows = slice(start, start + len(x))
        batches.append(Batch(x, y, z, h, columns, rows))
        start = rows.stop
    return batches
