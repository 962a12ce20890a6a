"""Distillation from a copy of the network made when the task began."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dualcba.losses import Batch
from dualcba.methods.base import Context, Method


class Teacher(nn.Module):
    """A frozen copy of the network in evaluation mode, and a mask of the classes it was trained on.

    It is allocated once and updated in place. In the first task `known` is empty, so terms masked
    by it are zero.
    """

    known: Tensor  # (C,) bool

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.network = copy.deepcopy(context.network).eval().requires_grad_(False)
        self.register_buffer("known", torch.zeros_like(context.sets.new))

    def refresh(self) -> None:
        """Copy the current network and the mask of old classes."""
        self.network.load_state_dict(self.context.network.state_dict())
        self.known.copy_(self.context.sets.old)

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, C) and features (n, d) of normalised inputs, without gradient."""
        with self.context.autocast():
            return self.network(x)  # type: ignore[no-any-return]


class DistillationMethod(Method):
    """A method whose teacher is a copy of the network at the beginning of the task."""

    def bind(self, context: Context) -> None:
        """Create the teacher."""
        super().bind(context)
        self.teacher = Teacher(context)

    def begin_task(self) -> None:
        """Copy the network into the teacher."""
        self.teacher.refresh()


def distillation(
    z: Tensor, target: Tensor, groups: Tensor, classes: Tensor, temperature: float
) -> Tensor:
    """Return KL(softmax(target / T) ‖ softmax(z / T)) of each sample, (n,).

    Classes with equal entries in `groups` (C,) share a softmax. The divergence is summed over the
    classes of the mask `classes` (C,), which must contain each group entirely or not at all.

    >>> z = torch.tensor([[0.0, 0.0, 0.0, 5.0]])
    >>> groups, two = torch.tensor([0, 0, 1, 1]), torch.tensor([True, True, False, False])
    >>> round(distillation(z, z + torch.tensor([2.0, 0, 0, 0]), groups, two, 2.0).item(), 4)
    0.1109
    """
    p, q = (grouped_log_softmax(logits / temperature, groups) for logits in (target, z))
    return (classes * p.exp() * (p - q)).sum(1)


def grouped_log_softmax(z: Tensor, groups: Tensor) -> Tensor:
    """Return the log-softmax (n, C) of logits, each over the classes of its group (C,)."""
    apart = groups.unsqueeze(0) != groups.unsqueeze(1)
    return z - z.unsqueeze(1).masked_fill(apart, -torch.inf).logsumexp(2)


@dataclass(slots=True, eq=False)
class Distillation:
    """weight · mean KL(softmax(target / T) ‖ softmax(z / T)), a term; see `distillation`."""

    batch: Batch
    target: Tensor  # (n, C) logits of the teacher
    groups: Tensor  # (C,) classes with equal entries share a softmax
    classes: Tensor  # (C,) bool
    temperature: float
    weight: float = 1.0
    adapted: bool = False

    def value(self, z: Tensor) -> Tensor:
        """Return the mean divergence over the batch."""
        args = (self.groups, self.classes, self.temperature)
        return self.weight * distillation(z, self.target, *args).mean()

    def gradient(self, z: Tensor) -> Tensor:
        """Return (q − p) / T on the classes of the mask, times weight / n."""
        p, q = self._softmax(self.target), self._softmax(z)
        return (q - p) * self.classes * (self.weight / (self.temperature * len(z)))

    def curvature(self, z: Tensor, s: Tensor) -> Tensor:
        """Return q ⊙ (s − ⟨q, s⟩ over the group) / T² on the classes, times weight / n."""
        q = self._softmax(z)
        same = (self.groups.unsqueeze(0) == self.groups.unsqueeze(1)).to(z.dtype)
        scale = self.weight / (self.temperature**2 * len(z))
        return q * (s - (q * s) @ same) * self.classes * scale

    def _softmax(self, z: Tensor) -> Tensor:
        return grouped_log_softmax(z / self.temperature, self.groups).exp()


def join(new: Batch, mem: Sequence[Batch]) -> Batch:
    """Return the concatenation of the new batch and the memory draws."""
    if not mem:
        return new
    x, y, z, h = (torch.cat([getattr(b, k) for b in (new, *mem)]) for k in "xyzh")
    return Batch(x, y, z, h)


def sum_of_means(each: Tensor, new: Batch, mem: Sequence[Batch]) -> Tensor:
    """Return the sum of the means of each batch; `each` has a value per sample of the joined batch.

    >>> batches = [Batch(y, y, y, y) for y in (torch.zeros(1), torch.zeros(3))]
    >>> sum_of_means(torch.tensor([5.0, 1, 2, 3]), batches[0], batches[1:]).item()
    7.0
    """
    parts = torch.split(each, [len(b.y) for b in (new, *mem)])
    return torch.stack([part.mean() for part in parts]).sum()
