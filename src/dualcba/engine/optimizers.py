"""SGD, Adam and AdamW of torch, without the wrappers around their methods.

torch wraps the methods of its optimisers so that `torch.compile` skips them. The first call of a
wrapped method imports the whole compiler, which takes seconds and is not needed here. The classes
in this module call the methods inside the wrappers. If a torch version has wrappers that cannot be
removed, the wrapped methods are called. The profiler marks of each step, which cost time in a small
step on a CPU, are left out unless hooks are registered for the step. On a CPU, torch's bookkeeping
around the fused kernels is left out too, because it takes as long as the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from dualcba.engine import torch_private
from dualcba.engine.torch_private import (
    adam_step,
    adamw_step,
    foreach_add_,
    fused_adam_,
    fused_adamw_,
    fused_sgd_,
    has_step_hooks,
    mark_hooked,
    sgd_step,
)
from dualcba.options import TrainingOptions

ADAM_FIELDS = ("step", "exp_avg", "exp_avg_sq")
"""The names of Adam's state of each parameter."""

KEPT = ("found_inf", torch_private.NO_CAPTURABLE_WARNING)
"""Attributes that torch does not copy: the tensor that skips an update, and a mark."""


class _Unwrapped(Optimizer):
    """The methods that all optimisers share, without wrappers."""

    add_param_group = torch_private.add_param_group

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy."""
        own = vars(self)
        return {**super().__getstate__(), **{name: own[name] for name in KEPT if name in own}}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, whatever `set_to_none` is."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _call_step(self, step: Any, closure: Any) -> Any:
        if has_step_hooks(self):
            step = torch_private.with_step_hooks(step)
        return step(self, closure)

    def _on_cpu(self, closure: Any) -> list[Tensor] | None:
        """Return the parameters with a gradient if the kernel can be called directly, else None.

        The conditions are: on a CPU, in float32, in a single group, without hooks or a closure.
        """
        group = self.param_groups[0]
        simple = len(self.param_groups) == 1 and group["fused"] and not group["maximize"]
        if not simple or closure is not None or has_step_hooks(self):
            return None
        params: list[Tensor] = [p for p in group["params"] if p.grad is not None]
        plain = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in params)
        return params if plain else None


class SGD(_Unwrapped, torch.optim.SGD):
    """`torch.optim.SGD` without wrappers."""

    @mark_hooked
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters from their gradients."""
        group, params = self.param_groups[0], self._on_cpu(closure)
        momentum, state = group["momentum"], self.state
        if params is None or (momentum and not all(p in state for p in params)):
            return self._call_step(sgd_step, closure)
        if params:
            buffers = [state[p]["momentum_buffer"] for p in params] if momentum else []
            fused_sgd_(
                params, [p.grad for p in params], buffers, lr=group["lr"],
                weight_decay=group["weight_decay"], momentum=momentum, dampening=group["dampening"],
                nesterov=group["nesterov"], maximize=False, is_first_step=False, grad_scale=None,
                found_inf=getattr(self, "found_inf", None),
            )  # fmt: skip
        return None


class Adam(_Unwrapped, torch.optim.Adam):
    """`torch.optim.Adam` without wrappers."""

    @mark_hooked
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters from their gradients."""
        return _adam(self, adam_step, fused_adam_, closure)


class AdamW(_Unwrapped, torch.optim.AdamW):
    """`torch.optim.AdamW` without wrappers."""

    @mark_hooked
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters from their gradients."""
        return _adam(self, adamw_step, fused_adamw_, closure)


def _adam(optimizer: Adam | AdamW, step: Any, kernel: Any, closure: Any) -> Any:
    group, params, state = optimizer.param_groups[0], optimizer._on_cpu(closure), optimizer.state
    if params is None or group["amsgrad"] or not all(p in state for p in params):
        return optimizer._call_step(step, closure)
    if params:
        steps, first, second = ([state[p][k] for p in params] for k in ADAM_FIELDS)
        found = getattr(optimizer, "found_inf", None)
        foreach_add_(steps, 1)
        kernel(
            params, [p.grad for p in params], first, second, [], steps, amsgrad=False,
            lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1],
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=False, grad_scale=None,
            found_inf=found,
        )  # fmt: skip
        if found is not None:
            foreach_add_(steps, [found] * len(steps), alpha=-1)
    return None


# ------------------------------------------------------------------ the optimiser of the network


def make_optimizer(
    parameters: Sequence[Tensor], lr: Tensor, options: TrainingOptions
) -> torch.optim.Optimizer:
    """Make the optimiser of the network that the options name.

    Its state is created at once, initially zero as in the first step of torch's optimisers. So
    every step does the same work and can be captured.
    """
    shared: dict[str, Any] = {"lr": lr, "weight_decay": options.weight_decay, "fused": True}
    optimizer: torch.optim.Optimizer
    if options.optimizer == "sgd":
        momentum, nesterov = options.momentum, options.nesterov
        optimizer = SGD(parameters, momentum=momentum, nesterov=nesterov, **shared)
    else:
        make = Adam if options.optimizer == "adam" else AdamW
        betas = options.beta1, options.beta2
        optimizer = make(parameters, betas=betas, capturable=lr.is_cuda, **shared)
    for p in parameters:
        if state := first_state(optimizer, p):
            optimizer.state[p] = state
    return optimizer


def first_state(optimizer: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    """Return the initial state of a parameter, all zero; empty for plain SGD."""
    group = optimizer.param_groups[0]
    if "betas" in group:
        step = torch.zeros((), device=p.device)
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"momentum_buffer": torch.zeros_like(p)} if group["momentum"] else {}


def first_states(name: str, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return `first_state` of all parameters, named `<name>.<index>.<field>` as in a state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = {f"{name}.{i}": first_state(optimizer, p) for i, p in enumerate(parameters)}
    return {f"{one}.{k}": v for one, state in states.items() for k, v in state.items()}


def largest_update(optimizer: torch.optim.Optimizer, lr: Tensor, norm: Tensor) -> Tensor:
    """Return an upper bound of all changes by a step, given the norm ‖g‖ of the gradient.

    The bounds of all earlier gradients were accepted. Plain SGD changes weights by at most α ‖g‖.
    With momentum μ its buffer grows up to ‖g‖ / (1 − μ), and the weights change by α times that.
    Adam stores g², which is finite while ‖g‖ is below 1e19, and changes each of n weights by at
    most α c, c = 1 / √((1 − β₂)(1 − β₁² / β₂)).
    """
    group = optimizer.param_groups[0]
    if "betas" in group:
        beta1, beta2 = group["betas"]
        c = 1 / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))
        n = sum(p.numel() for p in group["params"])
        return norm + lr * (c * math.sqrt(n))
    momentum: float = group["momentum"]
    return norm * (lr.clamp(min=1) / (1 - momentum)) if momentum else norm * lr
