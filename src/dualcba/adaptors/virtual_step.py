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

from typing import Any, Protocol

import torch
from torch import Tensor

from dualcba.options import TrainingOptions


class VirtualStep(Protocol):
    """How an optimiser would change a parameter; nothing is changed."""

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g, a scalar or one number per entry."""


class Momentum:
    """The step of SGD with momentum or weight decay."""

    def __init__(self, optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
        self.optimizer, self.lr = optimizer, lr
        group = optimizer.param_groups[0]
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
        if self.momentum:
            rest = rest + self.carry * self.optimizer.state[p]["momentum_buffer"]
        return p - self.lr * rest

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g."""
        return self.start(p) - self.rate * g, self.rate


class AdamStep:
    """The step of Adam or AdamW."""

    def __init__(self, optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
        self.optimizer, self.lr = optimizer, lr
        group = optimizer.param_groups[0]
        (self.beta1, self.beta2), self.eps = group["betas"], group["eps"]
        self.decay = group["weight_decay"]
        self.decoupled = isinstance(optimizer, torch.optim.AdamW)

    def moved(self, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return p' and the factor −∂p'/∂g of each entry."""
        state, (beta1, beta2) = self.optimizer.state[p], (self.beta1, self.beta2)
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
    group: dict[str, Any] = optimizer.param_groups[0]
    if "betas" in group:
        return AdamStep(optimizer, lr)
    return Momentum(optimizer, lr) if group["momentum"] or group["weight_decay"] else lr
