"""OBC: online bias correction, by a classifier that is trained on the memory alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.engine.torch_private import foreach_mul_
from dualcba.errors import at_least_0
from dualcba.losses import Adapt, Batch, CrossEntropy, Term, mean_weights, total
from dualcba.methods.base import Context, Method


class OBC(Method):
    """Train the features on new and memory samples, and the last layer on the memory alone.

    L = CE(new; by a surrogate last layer) + CE(mem; by the last layer)

    After the update of all weights, the last layer alone takes a step of plain gradient descent on
    the cross-entropy of a further memory draw, with features of the updated network. So the newest
    task is not over-represented in the last layer, which predicts. New samples use the logits of
    the surrogate layer, so a bias adaptor corrects only the memory samples.

    With the option `loss_mean` `"samples"`, each mean is weighted by its share of the samples.

    Parameters
    ----------
    rate
        The learning rate of the last layer's own step, relative to that of the network.

    References
    ----------
    Chrysakis and Moens, Online bias correction for task-free continual learning, ICLR 2023.
    """

    title = "OBC"
    extra_draw = True
    closed_form = True  # the surrogate layer does not depend on the logits of the last layer

    def __init__(self, *, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = at_least_0("rate", rate)

    def bind(self, context: Context) -> None:
        """Make the surrogate layer, a copy of the last layer."""
        super().bind(context)
        if not any(p.requires_grad for p in context.network.head.parameters()):
            wanted = "a trainable last layer: OBC trains it on the memory"
            raise ValueError(f"the network's last layer requires no gradient, expected {wanted}")
        self.surrogate = copy.deepcopy(context.network.head)

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return CE(mem), the part of the loss that depends on the last layer's logits."""
        _, *weights = mean_weights([new, *mem], by_samples=self.sample_mean)
        return [CrossEntropy(batch, w) for batch, w in zip(mem, weights, strict=True)]

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the cross-entropies of both layers."""
        weight = mean_weights([new, *mem], by_samples=self.sample_mean)[0]
        surrogate = weight * F.cross_entropy(self.surrogate(new.h), new.y)
        return surrogate + total(self.terms(new, mem), adapt) if mem else surrogate

    def extra_step(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Train the last layer on features of a further memory draw."""
        head = self.context.network.head
        parameters = [p for p in head.parameters() if p.requires_grad]
        with torch.enable_grad():
            loss = F.cross_entropy(head(batch.h), batch.y)
            change = list(torch.autograd.grad(loss, parameters))
        foreach_mul_(change, self.rate * self.context.lr)
        return [p.detach() for p in parameters], change
