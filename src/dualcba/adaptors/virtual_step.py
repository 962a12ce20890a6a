"""The virtual step of the last layer: the step that the optimiser of θ would make.

For a parameter p with gradient g, learning rate α, weight decay λ, momentum μ and buffer v (SGD),
or moments m and v, decays β₁ and β₂ and step number t (Adam):

    SGD       p' = p − α (μ v + g + λ p)
    Nesterov  p' = p − α (μ² v + (1 + μ)(g + λ p))
    Adam      p' = p − α m̂ / (√v̂ + ε)        m̂ = (β₁ m + (1 − β₁) g) / (1 − β₁ᵗ)
                                               v̂ = (β₂ v + (1 − β₂) g²) / (1 − β₂ᵗ)

where Adam replaces g by g + λ p, and AdamW replaces p by (1 − αλ) p. The moments are those before
the step. p' is exactly the result of the optimiser. In its derivative with respect to g, v̂ is a
constant with the value that includes g, because the old v would be 0 in the first step. So ∂p'/∂g
is −α for SGD, −α (1 + μ) for Nesterov, and for Adam, entry by entry, −α (1 − β₁) / (1 − β₁ᵗ) /
(√v̂ + ε).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dualcba.engine.optimizers import first_state
from dualcba.errors import expected
from dualcba.options import TrainingOptions

Group = dict[str, Any]
"""A parameter group of an optimiser."""


class VirtualStep(Protocol):
    """Computes how an optimiser would change a parameter, without changing it."""

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g, a scalar or one number per entry."""


class Momentum:
    """The step of SGD with momentum or weight decay."""

    def __init__(self, optimizer: torch.optim.Optimizer, group: Group, lr: Tensor) -> None:
        self.optimizer, self.lr = optimizer, lr
        self.momentum: float = group["momentum"]
        self.decay: float = group["weight_decay"]
        self.gain: float = 1 + self.momentum if group["nesterov"] else 1.0
        self.carry = self.momentum**2 if group["nesterov"] else self.momentum

    @property
    def rate(self) -> Tensor:
        """The factor −∂p'/∂g, a scalar."""
        return self.lr * self.gain

    def start(self, p: Tensor) -> Tensor:
        """Return p' at g = 0."""
        rest = (self.gain * self.decay) * p
        buffer = self.optimizer.state.get(p, {}).get("momentum_buffer") if self.momentum else None
        if buffer is not None:  # torch creates it in the first step
            rest = rest + self.carry * buffer
        return p - self.lr * rest

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g."""
        return self.start(p) - self.rate * g, self.rate


class AdamStep:
    """The step of Adam or AdamW."""

    def __init__(self, optimizer: torch.optim.Optimizer, group: Group, lr: Tensor) -> None:
        self.optimizer, self.lr = optimizer, lr
        (self.beta1, self.beta2), self.eps = group["betas"], group["eps"]
        self.decay = group["weight_decay"]
        decoupled = group.get("decoupled_weight_decay", False)  # Adam of recent versions of torch
        self.decoupled: bool = decoupled or isinstance(optimizer, torch.optim.AdamW)

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g of each entry."""
        state = self.optimizer.state.get(p) or first_state(self.optimizer, p)
        beta1, beta2 = self.beta1, self.beta2
        if self.decay and not self.decoupled:
            g = g + self.decay * p
        t = state["step"].double() + 1
        second = torch.lerp(g.square(), state["exp_avg_sq"], beta2) / (1 - beta2**t)
        factor = self.lr * ((1 - beta1) / (1 - beta1**t)) / (second.sqrt() + self.eps)
        start = p * (1 - self.lr * self.decay) if self.decay and self.decoupled else p
        carried = (beta1 / (1 - beta1)) * state["exp_avg"]
        return start - factor * (carried + g), factor


def make_virtual_step(
    optimizer: torch.optim.Optimizer, lr: Tensor, options: TrainingOptions
) -> VirtualStep | Tensor:
    """Return the virtual step that the options name; for plain SGD, only its learning rate."""
    if options.virtual == "sgd":
        return lr if options.virtual_lr is None else torch.full_like(lr, options.virtual_lr)
    return _of_group(optimizer, optimizer.param_groups[0], lr)


def _of_group(optimizer: torch.optim.Optimizer, group: Group, lr: Tensor) -> VirtualStep | Tensor:
    """Return the virtual step of a parameter group; for plain SGD, only its learning rate."""
    if "betas" in group:
        return AdamStep(optimizer, group, lr)
    return Momentum(optimizer, group, lr) if group["momentum"] or group["weight_decay"] else lr


# ------------------------------------------------------------------ any optimiser of a caller


class PerParameter:
    """The step of an optimiser whose parameters are in different groups."""

    def __init__(self, steps: dict[Tensor, VirtualStep]) -> None:
        self.steps = steps

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g."""
        return self.steps[p].moved(p, g)


def follow(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], options: TrainingOptions
) -> VirtualStep | Tensor:
    """Return the virtual step of these parameters by the caller's optimiser.

    The groups are read at each call, because a scheduler may have changed them. `check_followed`
    checks that the optimiser is supported.
    """
    groups = [_group_of(optimizer, p) for p in parameters]
    device = parameters[0].device
    rates = [torch.as_tensor(g["lr"], dtype=torch.float32, device=device) for g in groups]
    if options.virtual == "sgd":
        return make_virtual_step(optimizer, rates[0], options)
    if all(group is groups[0] for group in groups):
        return _of_group(optimizer, groups[0], rates[0])
    kind = AdamStep if "betas" in groups[0] else Momentum
    made = [kind(optimizer, *both) for both in zip(groups, rates, strict=True)]
    return PerParameter(dict(zip(parameters, made, strict=True)))


def check_followed(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], options: TrainingOptions
) -> None:
    """Raise unless `follow` supports the optimiser, and it has all of these parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(expected("optimizer", optimizer, "an optimiser of the network's weights"))
    groups, name = [_group_of(optimizer, p) for p in parameters], type(optimizer).__name__
    if options.virtual == "sgd":
        return
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW):
        wanted = "SGD, Adam or AdamW of torch.optim, or the option virtual='sgd'"
        raise ValueError(f"the optimizer is of type {name}, expected {wanted}")
    for group in groups:
        for field in ("dampening", "maximize", "amsgrad"):
            if group.get(field):
                wanted = f"{type(group[field])()}, or the option virtual='sgd'"
                raise ValueError(expected(f"{field} of {name}", group[field], wanted))


def _group_of(optimizer: torch.optim.Optimizer, p: Tensor) -> Group:
    """Return the group of a parameter, or raise if it has none."""
    for group in optimizer.param_groups:
        if any(p is other for other in group["params"]):
            return group
    wanted = "an optimiser of the network's parameters"
    raise ValueError(f"the optimizer does not have the last layer's parameters, expected {wanted}")
