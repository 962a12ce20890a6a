"""The processes of a data-parallel learner, and their communication.

Every process, called a *rank* as in torch, has the whole batch of a step: raw samples are small
compared with the activations of a network. Each rank passes its share of the rows through the
network, and gathers logits and features of the other rows. From there on all ranks compute the same
values from the same numbers. In the backward pass each rank has the gradients of its own rows.
`Gathered` multiplies them by the number of ranks, so that the *mean* over ranks of any gradient is
the gradient in a single process, whether it comes from shared rows or from values that all ranks
have computed.

`exchange` compares the calls that the ranks make on the host, such as `new_task`. If one rank has
failed or made another call, all ranks raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dualcba.engine.torch_private import foreach_copy_
from dualcba.errors import expected, reason

T = TypeVar("T")


def initialised() -> bool:
    """Return whether this process has joined a process group."""
    return dist.is_available() and dist.is_initialized()


class Ranks:
    """The ranks of the default process group, and collective operations on their tensors.

    The constructor is a collective call too. `device` is the device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        if not initialised():
            wanted = "False, or torch.distributed.init_process_group before the learner is made"
            raise ValueError(expected("distributed", True, wanted))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.host: Any = dist.new_group(backend="gloo")
        self.group: Any = self.host if device.type == "cpu" else dist.group.WORLD

    def __deepcopy__(self, memo: dict[int, object]) -> Ranks:
        return self  # a copy of a learner belongs to the same processes

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a distributed learner cannot be pickled, expected save and load")

    # ------------------------------------------------------------------ calls of the host

    def exchange(self, call: str, value: T, error: Exception | None = None) -> list[T]:
        """Return the values of all ranks; raise if a rank has failed or has made another call."""
        own = call, None if error is None else reason(error), value
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own, group=self.host)
        if error is not None:
            raise error
        for rank, (other, failure, _) in enumerate(found):
            if failure is not None:
                raise RuntimeError(f"rank {rank} failed in {other}: {failure}")
        for rank, (other, _, _) in enumerate(found):
            if other != call:
                wanted = "the same call on all ranks"
                raise RuntimeError(f"rank {rank} called {other}, expected {call}: {wanted}")
        return [value for _, _, value in found]

    def attempt(self, call: str, make: Callable[[], T]) -> list[T]:
        """Return what `make` returns on each rank; raise on all ranks if it raises on one."""
        try:
            own = make()
        except Exception as error:
            self.exchange(call, None, error)
            raise
        return self.exchange(call, own)

    def each(self, call: str, make: Callable[[], T]) -> T:
        """Return what `make` returns on this rank; raise on all ranks if it raises on one."""
        made: list[T] = []
        self.attempt(call, lambda: made.append(make()))
        return made[0]

    def same(self, call: str, make: Callable[[], T]) -> T:
        """Return what `make` returns; raise on all ranks unless it returns equal values on all."""
        first, *others = self.attempt(call, make)
        for rank, other in enumerate(others, 1):
            if other != first:
                text = f"{call} on rank {rank}"
                raise ValueError(expected(text, other, f"{first!r}, as on rank 0"))
        return first

    # ------------------------------------------------------------------ tensors

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over ranks."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over ranks, with one message for each dtype."""
        self._apply_flat(tensors, lambda flat: self.sum_(flat).div_(self.size))

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0, with one message for each dtype."""
        own = [t.detach() for t in tensors]
        self._apply_flat(own, lambda flat: dist.broadcast(flat, 0, group=self.group))

    def _apply_flat(self, tensors: Sequence[Tensor], change: Callable[[Tensor], object]) -> None:
        """Apply an operation to tensors in place, joining all values of one dtype."""
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in own])
            change(flat)
            parts = flat.split_with_sizes([t.numel() for t in own])
            foreach_copy_(own, [part.view(t.shape) for part, t in zip(parts, own, strict=True)])

    def stack(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have equal shapes, as (ranks, ...)."""
        out = tensor.new_empty(self.size, *tensor.shape)
        dist.all_gather(list(out.unbind()), tensor.contiguous(), group=self.group)
        return out

    # ------------------------------------------------------------------ rows

    def share(self, n: int, rank: int | None = None) -> slice:
        """Return the rows of n that a rank computes, by default this one."""
        k = self.rank if rank is None else rank
        return slice(n * k // self.size, n * (k + 1) // self.size)

    def counts(self, n: int) -> list[int]:
        """Return how many of n rows each rank computes."""
        shares = [self.share(n, rank) for rank in range(self.size)]
        return [s.stop - s.start for s in shares]

    def own_rows(self, whole: Tensor, parts: Sequence[int]) -> Tensor:
        """Return this rank's share of each part of a tensor; parts are consecutive rows."""
        own = [part[self.share(len(part))] for part in whole.split_with_sizes(list(parts))]
        return own[0] if len(own) == 1 else torch.cat(own)

    def all_rows(self, own: Tensor, parts: Sequence[int]) -> Tensor:
        """Return the whole tensor from the shares of all ranks; the inverse of `own_rows`."""
        counts = tuple(map(tuple, zip(*(self.counts(n) for n in parts), strict=True)))
        return self.join(own, counts)

    def join(self, own: Tensor, counts: tuple[tuple[int, ...], ...]) -> Tensor:
        """Return the rows of all ranks; `counts[rank]` has the rank's number of rows in each part.

        The result has all parts in order, each with its rows in the order of ranks.
        """
        longest = max(map(sum, counts))
        padding = own.new_zeros(longest - len(own), *own.shape[1:])
        padded = torch.cat([own, padding]) if len(padding) else own
        order = torch.tensor(_order(counts), device=own.device)
        return self.stack(padded).flatten(0, 1).index_select(0, order)


@lru_cache(maxsize=256)
def _order(counts: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the position of each row of the whole tensor among the padded rows of all ranks.

    >>> _order(((1, 1), (2, 1)))  # rank 0 has 1 row of each part; rank 1 has 2 and 1, no padding
    (0, 3, 4, 1, 5)
    """
    longest = max(map(sum, counts))
    order: list[int] = []
    for part in range(len(counts[0])):
        for rank, own in enumerate(counts):
            start = rank * longest + sum(own[:part])
            order += range(start, start + own[part])
    return tuple(order)


class Gathered(torch.autograd.Function):
    """`Ranks.all_rows`; a rank's gradient is that of its own rows, times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, parts: Sequence[int]) -> Tensor:
        """Return the whole tensor."""
        ctx.ranks, ctx.parts = ranks, parts
        return ranks.all_rows(own, parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's rows."""
        own = ctx.ranks.own_rows(grad, ctx.parts)
        return own * ctx.ranks.size, None, None


def gathered(own: Tensor, ranks: Ranks, parts: Sequence[int]) -> Tensor:
    """Return the whole tensor from the shares that the ranks have computed, with gradients."""
    return Gathered.apply(own, ranks, parts)  # type: ignore[no-untyped-call, no-any-return]
