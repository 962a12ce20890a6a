"""The virtual step of the last layer: the step that the optimiser of θ would make of it.

For a gradient g of a parameter p, with learning rate α, weight decay λ, momentum μ of the buffer v
(SGD), or moments m and v, decays β₁ and β₂ and the number t of the step (Adam):

    SGD       p' = p − α (μ v + g + λ p)
    Nesterov  p' = p − α (μ² v + (1 + μ)(g + λ p))
    Adam      p' = p − α m̂ / (√v̂ + ε)        m̂ = (β₁ m + (1 − β₁) g) / (1 − β₁ᵗ)
                                               v̂ = (β₂ v + (1 − β₂) g²) / (1 − β₂ᵗ)

where Adam has g + λ p in the place of g, and AdamW has (1 − αλ) p in the place of p. The moments
are those before the step. p' is exactly what the optimiser makes of g. In its derivative with
respect to g, v̂ is a constant, with the value that includes g: the old v would be 0 in the first
step. So p' moves with g by the factor −α for SGD, −α (1 + μ) for Nesterov's, and for Adam, entry by
entry, −α (1 − β₁) / (1 − β₁ᵗ) / (√v̂ + ε).
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
    """How an optimiser would change a parameter; nothing is changed."""

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
        if buffer is not None:  # before its first step an optimiser of torch has none
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
    """Return the virtual step that the options name; that of plain SGD is its rate alone."""
    if options.virtual == "sgd":
        return lr if options.virtual_lr is None else torch.full_like(lr, options.virtual_lr)
    return _of_group(optimizer, optimizer.param_groups[0], lr)


def _of_group(optimizer: torch.optim.Optimizer, group: Group, lr: Tensor) -> VirtualStep | Tensor:
    """Return the virtual step of the parameters of a group; that of plain SGD is its rate alone."""
    if "betas" in group:
        return AdamStep(optimizer, group, lr)
    return Momentum(optimizer, group, lr) if group["momentum"] or group["weight_decay"] else lr


# ------------------------------------------------------------------ any optimiser of a caller


class PerParameter:
    """The step of an optimiser in which parameters differ in their groups."""

    def __init__(self, steps: dict[Tensor, VirtualStep]) -> None:
        self.steps = steps

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g."""
        return self.steps[p].moved(p, g)


def follow(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], options: TrainingOptions
) -> VirtualStep | Tensor:
    """Return the virtual step of these parameters that the options name, by a caller's optimiser.

    Its groups are read anew, because a scheduler may have changed them. `check_followed` says which
    optimisers can be followed.
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
    """Raise unless `follow` knows the steps of an optimiser, and it has all of these parameters."""
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
