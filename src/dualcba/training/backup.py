"""Copies of the tensors that a step changes, to undo a step that fails or is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.engine.torch_private import foreach_copy_
from dualcba.methods import Context, Method
from dualcba.normalization.statistics import batch_norms


class Backup:
    """Copies of the buffers of all modules and, in an outer step, of φ and its moments.

    The forward passes of a step change the running statistics, and φ is updated before θ. The
    weights and the moments of their optimiser are changed last. They are copied only if something
    can fail after their update: a further update with the same batch (`Method.repeats`), or the
    method's `extra_step` or `after_step`.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        outer_loop: OuterLoop,
        optimizer: torch.optim.Optimizer,
        standardise: nn.Module | None = None,
    ) -> None:
        self.outer_loop = outer_loop
        self.optimizer = optimizer
        given = (context.network, method, outer_loop.adaptor, standardise)
        modules = [module for module in given if module is not None]
        buffers = [b for module in modules for b in module.buffers()]
        layers = [layer for module in modules for layer in batch_norms(module)]
        if context.lr.is_cuda and all(layer.momentum is not None for layer in layers):
            counts = {id(layer.num_batches_tracked) for layer in layers}  # not used
            buffers = [b for b in buffers if id(b) not in counts]
        theta = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        self.repeats = method.repeats > 1
        late = self.repeats or method.extra_draw
        late = late or type(method).after_step is not Method.after_step
        own = [*(p.detach() for p in method.parameters()), *buffers] if self.repeats else []
        self.weights = [*theta, *own] if late else []
        self.others: list[Tensor] = []  # tensors that a step changes last; copied with `repeats`
        self._groups = [_Group(same) for same in _by_dtype(buffers)]
        self._copies = [group.copies() for group in self._groups]
        self._phi_groups: list[_Group] = []
        self._moments: list[Tensor] | None = None  # of φ's optimiser; None if φ is not updated
        self._saved = False
        self._weights: tuple[list[Tensor], list[Tensor]] = [], []

    def save(self, *, with_adaptor: bool) -> None:
        """Copy the buffers and, `with_adaptor`, φ and its moments."""
        for group, copies in zip(self._groups, self._copies, strict=True):
            foreach_copy_(copies, group.live)  # one dtype at a time is one kernel
        self._moments = self._moments_of_phi() if with_adaptor else None
        self._phi_groups = []
        if self._moments is not None:
            self._phi_groups = [_Group(t) for t in _by_dtype([*self._phi(), *self._moments])]
        self._saved = True

    def save_weights(self) -> None:
        """Copy the weights, if the step can fail after their update."""
        live = [*self.weights, *(_moments(self.optimizer) if self.weights else ())]
        if self.repeats:
            live += [*self._phi(), *self._moments_of_phi(), *self.others]
        self._weights = live, [t.clone() for t in live]

    def restore(self) -> None:
        """Undo all changes since `save` and `save_weights`."""
        if self._saved:
            for group in (*self._groups, *self._phi_groups):
                group.put(group.values)
            for t in self._new_moments():
                t.zero_()
        if self._weights[0]:
            foreach_copy_(*self._weights)
        self.discard()

    def restore_unless(self, good: Tensor, buffers: Sequence[Tensor]) -> None:
        """Undo the changes since `save` unless `good`, a () bool on the device, without waiting.

        `buffers` is the result of `current_buffers`.
        """
        now = [*buffers, *(group.now() for group in self._phi_groups)]
        for group, values in zip((*self._groups, *self._phi_groups), now, strict=True):
            group.put(torch.where(good, values, group.values))
        for t in self._new_moments():
            t.mul_(good)

    def current_buffers(self) -> list[Tensor]:
        """Return the current values of all buffers, one tensor per dtype."""
        return [group.now() for group in self._groups]

    def discard(self) -> None:
        """Discard the copies."""
        self._saved, self._moments, self._phi_groups = False, None, []
        self._weights = [], []

    def _phi(self) -> list[Tensor]:
        adaptor = self.outer_loop.adaptor
        return [] if adaptor is None else [p.detach() for p in adaptor.parameters()]

    def _moments_of_phi(self) -> list[Tensor]:
        optimizer = self.outer_loop.optimizer
        return [] if optimizer is None else _moments(optimizer)

    def _new_moments(self) -> Iterator[Tensor]:
        """Yield the optimiser state of φ that was created since `save`, initially zero."""
        if self._moments is not None:
            known = {id(t) for t in self._moments}
            yield from (t for t in self._moments_of_phi() if id(t) not in known)


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the current tensors of an optimiser's state; loading a state replaces them."""
    return [t for state in optimizer.state.values() for t in state.values()]


class _Group:
    """Tensors of one dtype, and a copy of all their values in one flat tensor."""

    def __init__(self, live: list[Tensor]) -> None:
        self.live = live
        self.sizes = [t.numel() for t in live]
        self.values = self.now()

    def now(self) -> Tensor:
        """Return the current values."""
        return torch.cat([t.reshape(-1) for t in self.live])

    def copies(self) -> list[Tensor]:
        """Return the copy as views with the shapes of the live tensors."""
        return self._parts(self.values)

    def put(self, values: Tensor) -> None:
        """Copy values into the live tensors."""
        foreach_copy_(self.live, self._parts(values))

    def _parts(self, values: Tensor) -> list[Tensor]:
        parts = values.split_with_sizes(self.sizes)
        return [part.view(t.shape) for part, t in zip(parts, self.live, strict=True)]


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault(t.dtype, []).append(t)
    return list(groups.values())
