"""The outer step of several processes: each computes it from the samples of all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dualcba.adaptors.hypergradient import Grads
from dualcba.engine.ranks import initialised
from dualcba.errors import expected

Rows = tuple[Tensor, ...]
"""Matrices with the same number of rows."""


def count(group: dist.ProcessGroup | None) -> int:
    """Return the number of processes in a group, None being all; 1 without torch.distributed."""
    return dist.get_world_size(group) if initialised() else 1


def gather(batches: Sequence[Rows], group: dist.ProcessGroup | None) -> list[list[Rows]]:
    """Return the batches of each process, in the order of the processes.

    A batch is a tuple of matrices. They become float32, in which labels below 2²⁴ are exact. The
    numbers of rows may differ between processes; the numbers of columns and batches may not.
    """
    widths = [m.shape[1] for m in batches[0]]
    own = torch.cat([torch.cat([m.float() for m in batch], 1) for batch in batches])
    sizes = _gather_sizes([len(batch[0]) for batch in batches], group)
    sent = own.new_zeros(max(map(sum, sizes)), own.shape[1])
    sent[: len(own)] = own
    received = [torch.empty_like(sent) for _ in sizes]
    dist.all_gather(received, sent, group=group)
    each_rank = zip(received, sizes, strict=True)
    parts = [rows[: sum(each)].split_with_sizes(each) for rows, each in each_rank]
    return [[tuple(part.split_with_sizes(widths, 1)) for part in of_rank] for of_rank in parts]


def _gather_sizes(own: list[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(found, own, group=group)
    numbers = [len(sizes) - 1 for sizes in found]  # the last one is the outer batch
    if len(set(numbers)) > 1:
        raise ValueError(expected("inner batches of the processes", numbers, "equal numbers"))
    return found


def broadcast(grads: Grads, group: dist.ProcessGroup | None) -> Grads:
    """Return the gradients of the group's first process, so that all are equal to the last bit."""
    given = [g for g in grads if g is not None]
    flat = torch.cat([g.flatten() for g in given])
    source = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast(flat, source, group=group)
    parts = iter(flat.split_with_sizes([g.numel() for g in given]))
    return tuple(None if g is None else next(parts).view_as(g) for g in grads)
