"""SGD and Adam as torch has them, without what surrounds them there.

torch wraps the methods of its optimisers so that `torch.compile` leaves them alone, and the first
call of any of them imports all of that compiler: seconds of a start, for a learner that compiles
nothing. Here the same methods are called as they are inside; of another torch, whose wrappers
cannot be looked through, they are the wrapped ones. Marks for a profiler, which a small step on a
CPU would notice, are left out unless somebody has hooked on to the steps.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

_sgd_step: Any = unwrap(torch.optim.SGD.step)
_adam_step: Any = unwrap(torch.optim.Adam.step)


class _Unwrapped(Optimizer):
    """What every optimiser does."""

    add_param_group = unwrap(Optimizer.add_param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; they are never kept as zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _move(self, step: Any, closure: Any) -> Any:
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            step = Optimizer.profile_hook_step(step)  # which calls them
        return step(self, closure)


class SGD(_Unwrapped, torch.optim.SGD):
    """`torch.optim.SGD`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move the parameters by their gradients."""
        return self._move(_sgd_step, closure)

    step.hooked = True  # type: ignore[attr-defined]  # else torch wraps it for its profiler


class Adam(_Unwrapped, torch.optim.Adam):
    """`torch.optim.Adam`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move the parameters by their gradients."""
        return self._move(_adam_step, closure)

    step.hooked = True  # type: ignore[attr-defined]
