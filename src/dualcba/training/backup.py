"""Copies of what a step changes before it is known that the step is good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.engine.torch_private import foreach_copy_
from dualcba.methods import Context, Method
from dualcba.normalization.statistics import batch_norms


class Backup:
    """Copies of the buffers of network and method and, in an outer step, of φ and its moments.

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
        buffers = [*context.network.buffers(), *method.buffers()]
        cumulative = any(layer.momentum is None for layer in batch_norms(context.network))
        if context.lr.is_cuda and not cumulative:  # then nothing depends on the counts of batches
            buffers = [b for b in buffers if b.is_floating_point()]
        self.buffers = _by_dtype(buffers)
        theta = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self.repeats = method.repeats > 1
        self.can_fail_late = self.repeats or type(method).after_step is not Method.after_step
        own = [*(p.detach() for p in method.parameters()), *buffers] if self.repeats else []
        self.weights = [*theta, *own] if self.can_fail_late else []
        self.others: list[Tensor] = []  # that a step changes last; used with repeated updates
        self._values: list[tuple[list[Tensor], Tensor]] = []  # tensors of one dtype, their values
        self._moments: list[Tensor] | None = None  # of φ's optimiser; None if φ is not updated
        self._weights: list[tuple[Tensor, Tensor]] = []

    def save(self, *, with_adaptor: bool) -> None:
        """Copy the buffers, and φ if it is about to be updated."""
        self._moments = self._moments_of_phi() if with_adaptor else None
        live = self.buffers
        if self._moments is not None:
            live = live + _by_dtype([*self._phi(), *self._moments])
        self._values = [(same, _flat(same)) for same in live]

    def save_weights(self) -> None:
        """Copy the weights, if a failure after their update is possible."""
        live = list(self.weights)
        if self.repeats:
            live += [*self._phi(), *self._moments_of_phi(), *self.others]
        self._weights = [(t, t.clone()) for t in live]

    def restore(self) -> None:
        """Undo all changes since `save` and `save_weights`."""
        for live, values in self._values:
            _put(live, values)
        for t in self._new_moments():
            t.zero_()
        for t, value in self._weights:
            t.copy_(value)
        self.discard()

    def restore_unless(self, good: Tensor) -> None:
        """Undo the changes since `save` unless `good`, a () bool on the device, without waiting."""
        for live, values in self._values:
            _put(live, torch.where(good, _flat(live), values))
        for t in self._new_moments():
            t.mul_(good)

    def discard(self) -> None:
        """Discard the copies."""
        self._values, self._moments, self._weights = [], None, []

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


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault(t.dtype, []).append(t)
    return list(groups.values())


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _put(tensors: list[Tensor], values: Tensor) -> None:
    """Copy values, one after the other, into tensors of one dtype."""
    parts = torch.split(values, [t.numel() for t in tensors])
    foreach_copy_(tensors, [v.view(t.shape) for v, t in zip(parts, tensors, strict=True)])
