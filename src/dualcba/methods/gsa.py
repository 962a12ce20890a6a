"""GSA: gradient self-adaptation, by split, balanced and weighted cross-entropies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dualcba.data.transforms import Mirrored, Transform
from dualcba.errors import at_least, at_least_0, expected
from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.memory import Memory, Pool
from dualcba.methods.base import Context, Method
from dualcba.methods.exemplars import check_flags


class GSA(Method):
    """Separate new classes from each other, and from old classes by a balanced, weighted loss.

    L = CE(N; over the new classes) + weight · mean over B of [−w_y · log p_y; over seen classes]

    N is the new batch and samples of the current task from the memory. A share 1 − ρ of B are
    samples of old tasks from the memory, and a share ρ are samples of N, where ρ is the share of
    new classes among the seen classes. Mirror images double both. The second term is used from the
    second task on.

    w_y = 2 / (1 + exp(1 − r_y)), where r_y = Σ (1 − p_y) over samples of y / Σ p_y over other
    samples: how much the loss has raised the logit of y, relative to how much it has lowered it.
    Both sums are over all batches B so far, including this one, at raw logits. In the first batches
    of a task all r_y = 1. So a class that was lowered more than raised has less weight.

    Task boundaries must be given. N excludes new samples of old classes, as in blurry streams.
    Samples are drawn without replacement and spread evenly over the rows of the memory.

    Parameters
    ----------
    own
        The number of samples of the current task in N from the memory.
    balanced
        The number of samples in B.
    weight
        The weight of the second term.
    delay
        The number of first batches of a task in which all r_y = 1.
    mirror
        Whether mirror images are added; False for samples that are not images.

    References
    ----------
    Guo et al., Dealing with cross-task class discrimination in online continual learning, CVPR
    2023.
    """

    title = "GSA"
    needs_boundaries = True
    memory_views = True
    sums: Tensor
    steps: Tensor

    def __init__(
        self,
        *,
        own: int = 22,
        balanced: int = 64,
        weight: float = 2.0,
        delay: int = 5,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        check_flags(mirror=mirror)
        at_least(1, own=own, balanced=balanced)
        at_least(0, delay=delay)
        self.chosen = (own, balanced)
        self.weight, self.delay, self.mirror = at_least_0("weight", weight), delay, mirror

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return a reservoir; raise if the samples have no mirror image."""
        if self.mirror and len(shape) != 3:
            wanted = "(channels, height, width), or the option mirror=False"
            raise ValueError(expected("the shape of a sample for GSA", shape, wanted))
        return super().make_memory(size, shape, dtype, C)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the transform of mirror images."""
        return {"mirrored": Mirrored(transform)} if self.mirror else {}

    def bind(self, context: Context) -> None:
        """Create the sums for r, and the counter of batches in the task."""
        super().bind(context)
        C = context.network.num_classes
        self.register_buffer("sums", context.lr.new_zeros(2, C))
        self.register_buffer("steps", context.lr.new_zeros(()))

    def begin_task(self) -> None:
        """Count the batches of the task from 0."""
        self.steps.zero_()

    def choose(self, pool: Pool, u: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the samples of N from the memory, and those of B, as rows of the pool."""
        size, sets = pool.memory.size, self.context.sets
        stored = pool.labels[:size]
        new = sets.new[stored.clamp(min=0)] & (stored >= 0)
        own, in_own = spread(new, u[0], len(u[0]))
        # copies of a single sample have no variance: fill the draw with other samples of the memory
        others = (u[0] * (stored >= 0).sum()).long()
        own = torch.where(in_own | (new.sum() > 1), own, others)
        batch = torch.arange(size, len(pool.labels), device=own.device)
        all_own = torch.cat([batch, own])
        in_all = torch.cat([torch.ones_like(batch, dtype=torch.bool), in_own])
        n, seen = len(u[1]), sets.seen.sum().clamp(min=1)
        many_old, many_new = (n * mask.sum() // seen for mask in (sets.old, sets.new))
        old, in_old = spread((stored >= 0) & ~new, u[1], many_old)
        rest, in_rest = spread(in_all, u[1], many_new, first=many_old)
        rows = torch.where(in_old, old, all_own[rest])
        return [(own, mean_one(in_own)), (rows, mean_one(in_old | in_rest))]

    @torch.no_grad()
    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Add the balanced batch to the sums of r, from the second task on."""
        self.steps += 1
        seen = self._seen(new)
        for batch in _views(mem[-1]) if mem else ():
            assert batch.each is not None
            used = ((batch.each > 0) & (self.context.sets.later > 0)).unsqueeze(1)
            p = batch.z.masked_fill(~seen, -torch.inf).softmax(1) * used
            own = (batch.y.unsqueeze(1) == torch.arange(len(seen), device=p.device)) & used
            both = torch.stack([((1 - p) * own).sum(0), (p * ~own).sum(0)])
            self.sums += both.to(self.sums.dtype)

    def ratios(self) -> Tensor:
        """Return r of each class, (C,); 1 in the first batches of a task and without samples."""
        raised, lowered = self.sums
        known = (lowered > 0) & (self.steps > self.delay)
        return torch.where(known, raised / torch.where(known, lowered, 1.0), 1.0)

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the cross-entropy of N over new classes, and that of B over seen classes."""
        sets = self.context.sets
        own = [new, *mem[:1]]
        used = [self._used(b) & sets.new[b.y] for b in own]
        n = sum(len(b.y) for b in own)
        scale = n / torch.cat(used).sum().clamp(min=1)  # one mean over all samples of N
        terms: list[Term] = []
        for batch, valid in zip(own, used, strict=True):
            terms += _masked(batch, valid, valid * scale, sets.new, len(valid) / n)
        for batch in mem[1:]:
            w = 2 / (1 + (1 - self.ratios()).exp())
            assert batch.each is not None
            each = batch.each * w[batch.y] * sets.later
            terms += _masked(batch, self._used(batch), each, self._seen(new), self.weight)
        return terms

    @staticmethod
    def _used(batch: Batch) -> Tensor:
        return batch.y >= 0 if batch.each is None else batch.each > 0

    def _seen(self, new: Batch) -> Tensor:
        """Return the seen classes, with those that appear now."""
        return self.context.sets.seen.index_fill(0, new.y, True)


def spread(
    mask: Tensor, u: Tensor, count: Tensor | int, first: Tensor | int = 0
) -> tuple[Tensor, Tensor]:
    """Draw rows (n,) of a mask without replacement, by u (n,) in [0, 1), and which are valid.

    Positions `first` to `first + count` get a row of the mask each, fewer if the mask has fewer
    rows. The rows of the mask are arranged in a circle and divided into `count` parts, and each
    position gets a random row of one part. The start of the first part is random too, so all rows
    are equally probable.

    >>> mask = torch.tensor([False, True, True, False, True])
    >>> rows, valid = spread(mask, torch.tensor([0.5, 0.1, 0.9, 0.0]), 2, first=1)
    >>> rows[valid].tolist(), valid.tolist()
    ([2, 1], [False, True, True, False])
    """
    present = mask.sum()
    many = present.clamp(min=1)
    count = torch.clamp(present, max=count)
    place = torch.arange(len(u), device=u.device) - first
    valid = (place >= 0) & (place < count)
    start, end = (k * many // count.clamp(min=1) for k in (place, place + 1))
    turn = (u.sum() % 1 * many).long()  # uniform, and independent of each single u
    number = (start + (u * (end - start)).long() + turn) % many
    return mask.logical_not().to(torch.uint8).argsort(stable=True)[number], valid


def mean_one(valid: Tensor) -> Tensor:
    """Return weights (n,) of valid samples, with mean 1 unless none is valid.

    >>> mean_one(torch.tensor([True, False, True, False])).tolist()
    [2.0, 0.0, 2.0, 0.0]
    """
    return valid * (len(valid) / valid.sum().clamp(min=1))


def _views(batch: Batch) -> list[Batch]:
    """Return a batch, with its mirror image if it has one."""
    return [batch, *(batch.views[name] for name in ("mirrored",) if name in batch.views)]


def _masked(
    batch: Batch, valid: Tensor, each: Tensor, classes: Tensor, weight: float
) -> list[Term]:
    """Return the cross-entropy over `classes`.

    Samples that are not valid get a label among these classes: the logit of another label is
    masked, its loss infinite, and 0 · ∞ is not 0.
    """
    y = torch.where(valid, batch.y, classes.to(torch.uint8).argmax())
    parts = _views(batch)
    return [
        CrossEntropy(replace(b, y=y), weight / len(parts), classes=classes, each=each)
        for b in parts
    ]
