"""The terms of rehearsal losses, with their derivatives in closed form.

A method defines its loss as a list of terms. A term computes its value, its gradient with respect
to the logits, and its curvature: how the gradient changes with the adaptor's correction r. With
these the outer step needs no second-order graph (see `adaptors.hypergradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.engine.torch_private import softmax_backward
from dualcba.kernels import adaptor as kernels


@dataclass(slots=True, eq=False)
class Batch:
    """Inputs and outputs of a forward pass: the new batch, a memory draw or the outer batch."""

    x: Tensor  # (n, ...) inputs, augmented and normalised
    y: Tensor  # (n,) labels
    z: Tensor  # (n, C) logits
    h: Tensor  # (n, d) features before the last linear layer
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # stored in memory with x and y
    rows: slice = field(default_factory=lambda: slice(None))  # its rows among all inner logits
    each: Tensor | None = None  # (n,) weights of the samples in cross-entropies; None: all 1
    views: Mapping[str, Batch] = field(default_factory=dict)  # other views of the same samples
    frequencies: Tensor | None = None  # (C,) see `ForwardPass.outer_batch`

    def with_logits(self, z: Tensor) -> Batch:
        """Return the batch with other logits."""
        return replace(self, z=z)


def inner_batches(new: Batch, mem: Sequence[Batch]) -> list[Batch]:
    """Return the batches of the inner loss, views included, in the order of their rows."""
    views = [b.views[name] for name in new.views for b in (new, *mem) if name in b.views]
    return [new, *mem, *views]


def mean_weights(batches: Sequence[Batch], *, by_samples: bool) -> list[float]:
    """Return the weight of each batch's mean in a loss: 1, or its share of all samples.

    >>> x = torch.zeros(3, 1)
    >>> mean_weights([Batch(x, x, x, x), Batch(x[:1], x, x, x)], by_samples=True)
    [0.75, 0.25]
    """
    if not by_samples:
        return [1.0] * len(batches)
    n = sum(len(batch.x) for batch in batches)
    return [len(batch.x) / n for batch in batches]


def weights_of_one_mean(batches: Sequence[Batch]) -> list[Tensor | None]:
    """Return weights of samples that turn the sum of weighted batch means into one overall mean.

    The weights of the batch means are those of `mean_weights`. Samples of weight 0, which pad a
    draw, are excluded from the mean. The result is None for each batch if no batch has weights.

    >>> x = torch.zeros(3, 1)
    >>> batches = [Batch(x, x, x, x), Batch(x, x, x, x, each=torch.tensor([3.0, 0.0, 0.0]))]
    >>> [w.tolist() for w in weights_of_one_mean(batches)]
    [[1.5, 1.5, 1.5], [1.5, 0.0, 0.0]]
    """
    if all(batch.each is None for batch in batches):
        return [None] * len(batches)
    every = [b.y.new_ones(len(b.x)) if b.each is None else b.each for b in batches]
    counts = [(each > 0).float() for each in every]
    whole = torch.cat(counts)
    scale = len(whole) / whole.sum().clamp(min=1)
    return [count * scale for count in counts]


def stack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate matrices along their rows, detached.

    If they are consecutive rows of one matrix, as after a joint forward pass, return a view of it.

    >>> both = torch.zeros(5, 2)
    >>> stack_rows([both[:2], both[2:]]).data_ptr() == both.data_ptr()
    True
    """
    first = parts[0].detach()
    rows, end = 0, first.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same and part.is_contiguous() and part.storage_offset() == end):
            return torch.cat([p.detach() for p in parts])
        rows, end = rows + len(part), end + part.numel()
    width = first.shape[1]
    return first.as_strided((rows, width), (width, 1))


Adapt = Callable[[Batch], Tensor]
"""Maps a batch to the logits for the loss: raw, or corrected by the adaptor."""


def identity(batch: Batch) -> Tensor:
    """Return the logits of a batch, unchanged; used without an adaptor."""
    return batch.z


class Term(Protocol):
    """A term of a loss over logits."""

    batch: Batch
    adapted: bool

    def value(self, z: Tensor) -> Tensor:
        """Return the term at logits z."""

    def gradient(self, z: Tensor) -> Tensor:
        """Return ∂ value / ∂ z."""

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return ∂² value / ∂z² applied to s."""


@dataclass(slots=True, eq=False)
class CrossEntropy:
    """weight · mean CE(z, y), with the softmax over all classes or those of a mask.

    >>> z, y = torch.zeros(2, 4), torch.tensor([0, 3])
    >>> batch = Batch(z, y, z, z)
    >>> round(CrossEntropy(batch).value(z).item(), 4)
    1.3863
    """

    batch: Batch
    weight: float = 1.0
    adapted: bool = True
    classes: Tensor | None = None  # (C,) or (n, C) bool: the classes in the softmax
    each: Tensor | None = None  # (n,) weights of the samples; by default those of the batch

    def __post_init__(self) -> None:
        if self.each is None:
            self.each = self.batch.each

    def _masked(self, z: Tensor) -> Tensor:
        return z if self.classes is None else z.masked_fill(~self.classes, -torch.inf)

    def _scale(self, z: Tensor) -> Tensor | float:
        each = 1.0 if self.each is None else self.each.to(z.dtype).unsqueeze(1)
        return each * (self.weight / z.shape[0])

    def _fused(self, *matrices: Tensor) -> bool:
        """Whether fused kernels can compute the derivatives."""
        each = () if self.each is None else (self.each,)
        return self.classes is None and kernels.applies(*matrices, *each)

    def value(self, z: Tensor) -> Tensor:
        """Return the mean over the batch of −log softmax(z)[y]."""
        if self.each is None:
            loss = F.cross_entropy(self._masked(z), self.batch.y)
            return loss if self.weight == 1.0 else self.weight * loss
        loss = F.cross_entropy(self._masked(z), self.batch.y, reduction="none")
        return self.weight * (self.each.to(z.dtype) * loss).mean()

    def gradient(self, z: Tensor) -> Tensor:
        """Return q − onehot(y), times the weights, with q = softmax(z)."""
        if self._fused(z):
            return kernels.entropy_gradient(z, self.batch.y, self.weight / len(z), self.each)
        scale, at = self._scale(z), self.batch.y.unsqueeze(1)
        q = self._masked(z).softmax(1).mul_(scale)
        if isinstance(scale, float):
            return q.scatter_(1, at, -scale, reduce="add")
        return q.scatter_add_(1, at, -scale)

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return q ⊙ (s − ⟨q, s⟩), times the weights."""
        if self._fused(z, s):
            scale = self.weight / len(z)
            return kernels.entropy_curvature(z, self.batch.y, s, scale, self.each)
        q = self._masked(z).softmax(1)
        return softmax_backward(s, q, 1, q.dtype).mul_(self._scale(z))


@dataclass(slots=True, eq=False)
class MeanSquaredError:
    """weight · mean (z − target)² over samples and classes.

    >>> z = torch.zeros(2, 4)
    >>> MeanSquaredError(Batch(z, z, z, z), z + 3, weight=0.5).value(z).item()
    4.5
    """

    batch: Batch
    target: Tensor  # (n, C)
    weight: float = 1.0
    adapted: bool = True

    def value(self, z: Tensor) -> Tensor:
        """Return the mean over samples and classes of (z − target)²."""
        return self.weight * F.mse_loss(z, self.target)

    def gradient(self, z: Tensor) -> Tensor:
        """Return 2 (z − target) / number of entries."""
        return (z - self.target).mul_(2.0 * self.weight / z.numel())

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return 2 s / number of entries."""
        return (2.0 * self.weight / z.numel()) * s


@dataclass(slots=True, eq=False)
class Divergence:
    """weight · T² · mean KL(softmax(target / T) ‖ softmax(z / T)): distillation, at raw logits.

    >>> z, target = torch.zeros(1, 2), torch.tensor([[8.0, 0.0]])
    >>> round(Divergence(Batch(z, z, z, z), target, temperature=4.0).value(z).item(), 4)
    5.245
    """

    batch: Batch
    target: Tensor  # (n, C) logits of the teacher
    temperature: float
    weight: float = 1.0
    adapted: bool = False

    def _scale(self, z: Tensor, power: int) -> Tensor | float:
        scale = self.weight * self.temperature**power / len(z)
        each = self.batch.each
        return scale if each is None else scale * each.to(z.dtype).unsqueeze(1)

    def value(self, z: Tensor) -> Tensor:
        """Return the mean divergence over the batch, times T²."""
        p, q = (logits.div(self.temperature).log_softmax(1) for logits in (self.target, z))
        return (p.exp() * (p - q) * self._scale(z, 2)).sum()

    def gradient(self, z: Tensor) -> Tensor:
        """Return T (q − p) / n, times the weights, with q = softmax(z / T)."""
        p, q = (logits.div(self.temperature).softmax(1) for logits in (self.target, z))
        return (q - p).mul_(self._scale(z, 1))

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return q ⊙ (s − ⟨q, s⟩) / n, times the weights."""
        q = z.div(self.temperature).softmax(1)
        return softmax_backward(s, q, 1, q.dtype).mul_(self._scale(z, 0))


@dataclass(slots=True, eq=False)
class Shifted:
    """A term at z + shift, with a constant shift (C,) for all samples.

    >>> z, y = torch.zeros(1, 2), torch.tensor([0])
    >>> term = Shifted(CrossEntropy(Batch(z, y, z, z)), torch.tensor([1.0, 0.0]).log())
    >>> term.value(z).item()
    0.0
    """

    term: Term
    shift: Tensor
    batch: Batch = field(init=False)
    adapted: bool = field(init=False)

    def __post_init__(self) -> None:
        self.batch, self.adapted = self.term.batch, self.term.adapted

    def value(self, z: Tensor) -> Tensor:
        """Return the term at z + shift."""
        return self.term.value(z + self.shift)

    def gradient(self, z: Tensor) -> Tensor:
        """Return the gradient of the term at z + shift."""
        return self.term.gradient(z + self.shift)

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return the curvature of the term at z + shift, applied to s."""
        return self.term.curvature(z + self.shift, s)


def scaled(term: Term, factor: float) -> Term:
    """Return a term with its weight multiplied by a factor; for `Shifted`, that of the inner term.

    >>> z = torch.zeros(2, 4)
    >>> scaled(MeanSquaredError(Batch(z, z, z, z), z + 3), 0.5).value(z).item()
    4.5
    """
    if isinstance(term, Shifted):
        return replace(term, term=scaled(term.term, factor))
    return replace(term, weight=term.weight * factor)  # type: ignore[type-var, attr-defined]


def total(terms: list[Term], adapt: Adapt) -> Tensor:
    """Return the sum of the terms, each at adapted or raw logits."""
    values = [t.value(adapt(t.batch) if t.adapted else t.batch.z) for t in terms]
    return reduce(torch.add, values)


def merge_terms(terms: Sequence[Term]) -> list[Term]:
    """Merge cross-entropies of consecutive rows with equal weights, so that fewer terms remain.

    The batch of a merged term has only valid labels and rows: use the term for `gradient` and
    `curvature` at given logits.
    """
    runs: list[list[Term]] = []
    for term in terms:
        if runs and _can_merge(runs[-1][-1], term):
            runs[-1].append(term)
        else:
            runs.append([term])
    return [run[0] if len(run) == 1 else _merge(run) for run in runs]


def _can_merge(a: Term, b: Term) -> bool:
    """Whether b follows a directly, with the same weight per sample and the same options."""
    if not (type(a) is CrossEntropy and type(b) is CrossEntropy):
        return False
    plain = all(t.each is None and t.classes is None for t in (a, b))
    equal = a.adapted == b.adapted and a.weight * len(b.batch.y) == b.weight * len(a.batch.y)
    adjacent = a.batch.rows.stop is not None and a.batch.rows.stop == b.batch.rows.start
    return plain and equal and adjacent


def _merge(run: Sequence[Term]) -> Term:
    first, last = run[0], run[-1]
    assert isinstance(first, CrossEntropy)
    y = torch.cat([t.batch.y for t in run])
    rows = slice(first.batch.rows.start, last.batch.rows.stop)
    weight = first.weight * (len(y) / len(first.batch.y))  # each term is a mean
    return replace(first, batch=replace(first.batch, y=y, rows=rows), weight=weight)
