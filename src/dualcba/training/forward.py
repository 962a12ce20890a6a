"""The forward passes of a step: read the batches, augment them and compute logits and features."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualcba.data import Transform
from dualcba.engine.torch_private import BatchNormBase
from dualcba.losses import Batch
from dualcba.memory import Pool
from dualcba.methods import Context, Method, viewed
from dualcba.nets import Network
from dualcba.normalization.layers import TaskAware, sample_tasks
from dualcba.normalization.statistics import (
    batch_norms,
    borrowed_averages,
    evaluation_mode,
    grouped_statistics,
    without_tracking,
)
from dualcba.options import ForwardMode
from dualcba.training.draws import BalancedDraw, BatchDraws, ChosenDraw, MemoryDraw

Raw = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Samples, labels and the columns stored with them."""

Outputs = tuple[Tensor, Tensor]
"""Logits and features."""


class ForwardPass:
    """Forward passes with batch statistics, as in training.

    `mode` is the learner's option `forward`. With `"concat"` all batches pass through the network
    together and share batch statistics; with `"sources"` each batch shares them with its views.
    Otherwise each batch and each view has its own statistics. `tracking` is the learner's option
    `tracking`. `cast_weights` returns a context that casts the weights of a network; None is the
    trained network.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        views: Mapping[str, Transform],
        *,
        mode: ForwardMode = "split",
        tracking: str = "all",
        cast_weights: Callable[..., AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        self.context = context
        self.method = method
        self.views = views
        self.concat, self.sources = mode == "concat", mode == "sources"
        self.tracking = tracking
        self.norm_layers = batch_norms(context.network)
        # layers in evaluation mode were frozen by the caller and keep their statistics
        self.trained_norm_layers = [layer for layer in self.norm_layers if layer.training]
        self._modes = [(module, module.training) for module in context.network.modules()]
        self.task_aware = [layer for layer in self.norm_layers if isinstance(layer, TaskAware)]
        self.samplewise = context.network.samplewise
        self.cast_weights = cast_weights

    def restore_modes(self) -> None:
        """Put the network back into training mode, if the caller has put it into evaluation mode.

        Layers that were in evaluation mode from the start stay in it.
        """
        if not self.context.network.module.training:
            for module, mode in self._modes:
                module.training = mode

    def inner_batches(
        self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]
    ) -> tuple[Batch, list[Batch]]:
        """Return B_trn: the new batch, with its other views, and the memory draws."""
        draws, weights = self._memory_batches(x, y, drawn)
        raw: list[Raw] = [(x, y, {}), *draws]
        params = [drawn.new_augment, *(draw.augment for draw in drawn.memory)]
        joined, inputs = self.augmented([samples for samples, _, _ in raw], params)
        if self.views:
            seen = self._viewed(raw)
            drawn_views = [drawn.views, *viewed(self.method, [d.views for d in drawn.memory])]
            inputs += self._view_inputs([samples for samples, _, _ in seen], drawn_views)
            raw += seen * len(self.views)
        with self.context.autocast():
            labels = [labels for _, labels, _ in raw]
            count = 1 + len(drawn.memory)
            outputs = self.through(inputs, labels, None if self.views else joined, count)
        batches = _batches(inputs, raw, outputs)
        new, *mem = batches[:count]
        for k, name in enumerate(self.views):
            first = count + k * len(seen)
            own = new, *viewed(self.method, mem)
            for batch, view in zip(own, batches[first : first + len(seen)], strict=True):
                batch.views = {**batch.views, name: view}
        for batch, each in zip(mem, weights, strict=False):  # `weights` may be empty
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

    def _viewed(self, raw: Sequence[Raw]) -> list[Raw]:
        """Return the samples that have further views: new samples, and maybe memory draws."""
        x, y, _ = raw[0]
        first = self.method.labelled
        stored = viewed(self.method, raw[1:])
        return [(x[first:], y[first:], {}), *((x, y, {}) for x, y, _ in stored)]

    def _view_inputs(
        self, samples: Sequence[Tensor], drawn: Sequence[Mapping[str, Tensor]]
    ) -> list[Tensor]:
        """Augment and normalise each view of all batches in one call; views may be chained."""
        inputs: list[Tensor] = []
        pixels = {"": _cat(samples)}
        for name, view in self.views.items():
            params = _cat([d[name] for d in drawn])
            source = pixels[view.source]
            pixels[name] = view.augment(source, params) if view.random else source
            inputs += torch.split(view.normalize(pixels[name]), [len(part) for part in samples])
        return inputs

    def outer_batch(self, x: Tensor, y: Tensor, drawn: BatchDraws[Tensor]) -> Batch:
        """Return B_buf: a draw from the memory, or evenly over classes of memory and new batch.

        If the step has drawn `filled`, `frequencies` are the expected class counts of a draw that
        has as many samples as there are to draw from. Running statistics are not updated.
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
        if fresh is not None:  # samples of the new batch have no stored logits yet
            columns = {k: torch.where(fresh[:, None], z.to(c), c) for k, c in columns.items()}
        return Batch(inputs, y, z, h, columns, frequencies=frequencies)

    @torch.no_grad()
    def extra_batch(self, draw: MemoryDraw[Tensor]) -> Batch:
        """Return a further memory draw; running statistics are not updated."""
        x, y, columns = self.context.memory.read(draw.rows)
        inputs = self.context.transform(x, draw.augment)
        layers = self.norm_layers
        with without_tracking(layers), self.context.autocast(), self.cast_weights(None):
            return Batch(inputs, y, *self.outputs(inputs, y), columns)

    def _pool(self, y: Tensor, filled: Tensor | None) -> Pool:
        assert filled is not None
        return Pool(self.context.memory, filled, y, self.context.sets.num_classes)

    def augmented(
        self, raw: list[Tensor], params: list[Tensor | None]
    ) -> tuple[Tensor, list[Tensor]]:
        """Augment and normalise the new batch and the draws; return them joined and separate.

        This is one call of the transform, unless draws have their own transforms.
        """
        if self.context.draw_transforms:
            transforms = map(self.context.transform_of, [None, *range(len(raw) - 1)])
            parts = [t(x, p) for t, x, p in zip(transforms, raw, params, strict=True)]
            return torch.cat(parts), parts
        drawn = [p for p in params if p is not None]
        inputs = self.context.transform(torch.cat(raw), torch.cat(drawn) if drawn else None)
        return inputs, list(inputs.split_with_sizes([len(part) for part in raw]))

    def through(
        self, inputs: Sequence[Tensor], labels: Sequence[Tensor], joined: Tensor | None = None,
        usual: int | None = None,
    ) -> Sequence[Outputs]:  # fmt: skip
        """Return logits and features of each batch; `joined` is their concatenation, if known.

        The first `usual` batches, by default all, are the default view of new samples and memory
        draws. The further views follow, view by view.
        """
        sizes = [len(v) for v in inputs]
        usual = len(inputs) if usual is None else usual
        if self.sources and self.views:
            return self._by_source(inputs, labels, usual)
        whole = joined if self.concat else None
        parts = self._with_own_statistics(inputs, usual) if whole is None else [whole]
        labels = self._with_own_statistics(labels, usual)
        tracked = self._tracked(len(inputs), len(parts), usual)
        alike = len(parts[0]) > 1 and len({len(part) for part in parts}) == 1
        together = alike and self.samplewise and all(tracked)
        joint = self.concat and len(parts) == 1
        if not joint and not together:
            z, h = map(torch.cat, zip(*self._one_by_one(parts, labels, tracked), strict=True))
        else:
            y = _cat(labels) if self.task_aware else labels[0]
            whole = _cat(parts) if joined is None else joined
            z, h = self.outputs(whole, y) if joint else self.grouped_outputs(whole, y, len(parts))
        return list(zip(z.split_with_sizes(sizes), h.split_with_sizes(sizes), strict=True))

    def _by_source(
        self, inputs: Sequence[Tensor], labels: Sequence[Tensor], usual: int
    ) -> list[Outputs]:
        """Return logits and features of each batch; a batch and its views share statistics."""
        groups = sources(len(inputs), usual, len(self.views))
        parts, y = ([_cat([b[i] for i in group]) for group in groups] for b in (inputs, labels))
        found: dict[int, Outputs] = {}
        for group, outputs in zip(groups, self._one_by_one(parts, y), strict=True):
            sizes = [len(inputs[i]) for i in group]
            each = zip(*(t.split_with_sizes(sizes) for t in outputs), strict=True)
            found.update(zip(group, each, strict=True))
        return [found[i] for i in range(len(inputs))]

    def passes(
        self, network: Network, batches: Sequence[Batch], views: Sequence[str] = ()
    ) -> list[Outputs]:
        """Pass batches through another network; see `Context.passes`."""
        other = copy.copy(self)
        other.context = replace(self.context, network=network)
        other.views = {name: self.views[name] for name in views}
        other.norm_layers, other.task_aware = batch_norms(network), []
        all_ = [*batches, *(b.views[name] for name in views for b in batches)]
        single = any(len(b.x) == 1 for b in all_)
        layers = (other.norm_layers, self.norm_layers) if single else ((), ())
        with self.context.autocast(), self.cast_weights(network), borrowed_averages(*layers):
            inputs, labels = [b.x for b in all_], [b.y for b in all_]
            return list(other.through(inputs, labels, usual=len(batches)))

    def _with_own_statistics(self, batches: Sequence[Tensor], usual: int) -> list[Tensor]:
        """Return the parts of the batches that have their own statistics.

        With `concat` this is one part, or one for each view of all samples. Otherwise each batch is
        a part; a new batch that begins with labelled samples is split into two.
        """
        if self.concat:
            if not self.method.memory_views or not self.views:
                return [_cat(batches)]
            size = (len(batches) - usual) // len(self.views)
            starts = range(usual, len(batches), size)
            return [_cat(batches[:usual]), *(_cat(batches[k : k + size]) for k in starts)]
        first = 0 if self.sources else self.method.labelled
        led = first and len(batches[0]) > first
        new = batches[0].tensor_split([first]) if led else [batches[0]]
        return [*new, *batches[1:]]

    def _tracked(self, batches: int, parts: int, usual: int) -> list[bool]:
        """Return whether each part updates the running statistics.

        Unless batches are joined, the parts are the new batch (two parts if it begins with labelled
        samples), then the memory draws, then the further views.
        """
        own, views, memory = parts - batches + 1, batches - usual, usual - 1
        if self.tracking == "all" or (self.tracking == "memory" and not memory):
            return [True] * parts
        new = [self.tracking == "labelled"] + [False] * (own - 1)
        return [*new, *[True] * memory, *[False] * views]

    def _one_by_one(
        self, inputs: Sequence[Tensor], labels: Sequence[Tensor],
        tracked: Sequence[bool] | None = None,
    ) -> list[Outputs]:  # fmt: skip
        """Pass each batch separately, batches of one sample last; all are tracked by default.

        A single sample uses the running statistics, which must not change between its forward and
        its backward pass.
        """
        outputs: dict[int, Outputs] = {}
        for i in sorted(range(len(inputs)), key=lambda i: len(inputs[i]) == 1):
            track = tracked is None or tracked[i]
            with nullcontext() if track else without_tracking(self.norm_layers):
                outputs[i] = self.outputs(inputs[i], labels[i])
        return [outputs[i] for i in range(len(inputs))]

    def grouped_outputs(self, inputs: Tensor, y: Tensor, groups: int) -> Outputs:
        """Return logits and features in one pass, with separate statistics for each equal group."""
        with grouped_statistics(self.norm_layers, groups):
            return self.outputs(inputs, y)

    def estimate(
        self, networks: Iterable[nn.Module], layers: Sequence[BatchNormBase], inputs: Tensor,
        groups: int = 1,
    ) -> None:  # fmt: skip
        """Update the running statistics of layers in training mode by a pass of equal groups."""
        with grouped_statistics(layers, groups, cumulative=True) if groups > 1 else nullcontext():
            for network in networks:
                network(inputs)

    def outputs(
        self, inputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor] | None = None
    ) -> Outputs:
        """Return logits and features; `parameters`, if given, replace those of the network.

        For a single sample, which has no batch statistics, the running statistics are used.
        """
        mode = evaluation_mode(self.context.network) if len(inputs) == 1 else nullcontext()
        with mode:
            return self.passed(inputs, y, parameters)

    def passed(
        self, inputs: Tensor, y: Tensor, parameters: Mapping[str, Tensor] | None = None
    ) -> Outputs:
        """Return logits and features of a pass in the network's current mode."""
        network = self.context.network
        with self.sample_tasks(y):
            if parameters is None:
                return network(inputs)  # type: ignore[no-any-return]
            return functional_call(network, dict(parameters), (inputs,))  # type: ignore[no-any-return]

    def sample_tasks(self, y: Tensor) -> AbstractContextManager[object]:
        """Tell task-aware layers the task of each sample; for unlabelled samples, the newest."""
        if not self.task_aware:
            return nullcontext()
        owner = self.context.sets.owner
        tasks = torch.where(y < 0, owner.max(), owner[y.clamp(min=0)])
        return sample_tasks(self.task_aware, tasks)


def sources(batches: int, usual: int, views: int) -> list[list[int]]:
    """Return the positions of each usual batch and of its views, among all batches.

    The batches are ordered: first the usual ones, which are the new batch and the memory draws;
    then, view by view, the views of the new batch and of the last draws, if these have views.

    >>> sources(5, 3, 2), sources(7, 3, 2)
    ([[0, 3, 4], [1], [2]], [[0, 3, 5], [1], [2, 4, 6]])
    """
    groups, size = [[k] for k in range(usual)], (batches - usual) // views
    for position in range(usual, batches):
        place = (position - usual) % size
        groups[usual - size + place if place else 0].append(position)
    return groups


def _cat(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors; a single tensor is returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Passes:
    """`ForwardPass.passes` for the method, with a weak reference.

    Without reference cycles a learner is freed at once, which matters on a GPU.
    """

    def __init__(self, forward_pass: ForwardPass) -> None:
        self._forward_pass = weakref.ref(forward_pass)

    def __call__(
        self, network: Network, batches: Sequence[Batch], views: Sequence[str] = ()
    ) -> list[Outputs]:
        """Pass batches through another network."""
        return self._get().passes(network, batches, views)

    def __reduce__(self) -> tuple[type[Passes], tuple[ForwardPass]]:
        """In a copy or pickle of the learner, refer to its own `ForwardPass`."""
        return Passes, (self._get(),)

    def _get(self) -> ForwardPass:
        forward_pass = self._forward_pass()
        assert forward_pass is not None
        return forward_pass


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
