"""SGD and Adam of torch, without the wrappers around their methods.

torch wraps the methods of its optimisers so that `torch.compile` skips them. The first call of a
wrapped method imports the whole compiler, which takes seconds, and this package compiles nothing.
The classes here call the methods inside the wrappers. If a torch version has wrappers that cannot
be removed, the wrapped methods are called. The profiler marks of each step, which cost time in a
small step on a CPU, are left out unless hooks are registered for the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from dualcba.engine import torch_private
from dualcba.engine.torch_private import (
    adam_step,
    fused_sgd_,
    has_step_hooks,
    mark_hooked,
    sgd_step,
)


class _Unwrapped(Optimizer):
    """The methods that all optimisers share, without wrappers."""

    add_param_group = torch_private.add_param_group

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, whatever `set_to_none` is."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _call_step(self, step: Any, closure: Any) -> Any:
        if has_step_hooks(self):
            step = torch_private.with_step_hooks(step)
        return step(self, closure)


class SGD(_Unwrapped, torch.optim.SGD):
    """`torch.optim.SGD` without wrappers."""

    @mark_hooked
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters from their gradients."""
        group = self.param_groups[0]
        plain = len(self.param_groups) == 1 and not group["momentum"] and not group["weight_decay"]
        simple = plain and group["fused"] and not group["maximize"] and closure is None
        params = [p for p in group["params"] if p.grad is not None]
        on_cpu = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in params)
        if not simple or not on_cpu or has_step_hooks(self):
            return self._call_step(sgd_step, closure)
        if params:  # without the bookkeeping of torch, which takes as long as the kernel
            fused_sgd_(
                params, [p.grad for p in params], [], lr=group["lr"], weight_decay=0.0,
                momentum=0.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
                grad_scale=None, found_inf=getattr(self, "found_inf", None),
            )  # fmt: skip
        return None


class Adam(_Unwrapped, torch.optim.Adam):
    """`torch.optim.Adam` without wrappers."""

    @mark_hooked
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters from their gradients."""
        return self._call_step(adam_step, closure)
