"""Copies of what a step changes before it is known that the step is good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.engine.torch_private import foreach_copy_
from dualcba.methods import Context, Method
from dualcba.normalization.statistics import batch_norms


class Backup:
    """Copies of the buffers of all modules and, in an outer step, of φ and its moments.

    The forward passes of a step change the running statistics, and φ is updated before θ. The
    weights are changed last. So they need a copy only if something can still fail after their
    update: another update with the same batch (`Method.repeats`), or the method's `after_step`.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        outer_loop: OuterLoop,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.outer_loop = outer_loop
        modules = (context.network, method, outer_loop.adaptor)
        buffers = [b for module in modules if module is not None for b in module.buffers()]
        cumulative = any(layer.momentum is None for layer in batch_norms(context.network))
        if context.lr.is_cuda and not cumulative:  # then nothing depends on the counts of batches
            buffers = [b for b in buffers if b.is_floating_point()]
        self.buffers = buffers
        theta = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self.repeats = method.repeats > 1
        self.can_fail_late = self.repeats or type(method).after_step is not Method.after_step
        own = [*(p.detach() for p in method.parameters()), *buffers] if self.repeats else []
        self.weights = [*theta, *own] if self.can_fail_late else []
        self.others: list[Tensor] = []  # that a step changes last; used with repeated updates
        self._copies = [t.clone() for t in self.buffers]  # static: written anew in every step
        self._saved: list[tuple[list[Tensor], list[Tensor]]] = []  # live tensors, and their copies
        self._moments: list[Tensor] | None = None  # of φ's optimiser; None if φ is not updated
        self._weights: tuple[list[Tensor], list[Tensor]] = [], []

    def save(self, *, with_adaptor: bool) -> None:
        """Copy the buffers, and φ if it is about to be updated."""
        self._moments = self._moments_of_phi() if with_adaptor else None
        self._saved = []
        if self.buffers:
            foreach_copy_(self._copies, self.buffers)
            self._saved.append((self.buffers, self._copies))
        if self._moments is not None:
            live = [*self._phi(), *self._moments]
            self._saved.append((live, [t.clone() for t in live]))

    def save_weights(self) -> None:
        """Copy the weights, if a failure after their update is possible."""
        live = list(self.weights)
        if self.repeats:
            live += [*self._phi(), *self._moments_of_phi(), *self.others]
        self._weights = live, [t.clone() for t in live]

    def restore(self) -> None:
        """Undo all changes since `save` and `save_weights`."""
        for live, copies in (*self._saved, self._weights):
            if live:
                foreach_copy_(live, copies)
        for t in self._new_moments():
            t.zero_()
        self.discard()

    def restore_unless(self, good: Tensor) -> None:
        """Undo the changes since `save` unless `good`, a () bool on the device, without waiting."""
        for every, all_copies in self._saved:
            for live, copies in _by_dtype(every, all_copies):
                kept = torch.where(good, _flat(live), _flat(copies))
                parts = torch.split(kept, [t.numel() for t in live])
                foreach_copy_(live, [v.view(t.shape) for v, t in zip(parts, live, strict=True)])
        for t in self._new_moments():
            t.mul_(good)

    def discard(self) -> None:
        """Discard the copies."""
        self._saved, self._moments, self._weights = [], None, ([], [])

    def _phi(self) -> list[Tensor]:
        adaptor = self.outer_loop.adaptor
        return [] if adaptor is None else [p.detach() for p in adaptor.parameters()]

    def _moments_of_phi(self) -> list[Tensor]:
        optimizer = self.outer_loop.optimizer
        states = [] if optimizer is None else optimizer.state.values()
        return [t for state in states for t in state.values()]

    def _new_moments(self) -> Iterator[Tensor]:
        """The optimiser state of φ that did not exist at `save`: it began at zero."""
        if self._moments is not None:
            known = {id(t) for t in self._moments}
            yield from (t for t in self._moments_of_phi() if id(t) not in known)


def _by_dtype(
    live: Sequence[Tensor], copies: Sequence[Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for t, copy in zip(live, copies, strict=True):
        both = groups.setdefault(t.dtype, ([], []))
        both[0].append(t)
        both[1].append(copy)
    return list(groups.values())


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
