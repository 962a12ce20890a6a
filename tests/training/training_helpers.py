"""What the tests of the training step share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dualcba import Learner, Method
from dualcba.losses import Adapt, Batch, CrossEntropy, MeanSquaredError, Term

METHODS = ["er", "er-cba", "er-dual-cba"]


class TwoDraws(Method):
    """As DER++: two draws and stored logits."""

    draws = 2
    columns = ("logits", "raw_logits")

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        terms: list[Term] = [CrossEntropy(new)]
        if mem:
            terms.append(MeanSquaredError(mem[0], mem[0].columns["logits"], weight=0.2))
            terms.append(CrossEntropy(mem[1], weight=0.5))
        return terms

    def outer_terms(self, outer_batch: Batch) -> list[Term]:
        return [
            CrossEntropy(outer_batch),
            MeanSquaredError(outer_batch, outer_batch.columns["raw_logits"]),
        ]


class Spy:
    """Records the batches of each step and what the loss was taken of."""

    def __init__(self, learner: Learner) -> None:
        self.steps: list[tuple[list[Batch], list[Tensor]]] = []
        self.loss = learner.method.loss
        learner.method.loss = self  # type: ignore[assignment,method-assign]

    def __call__(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        batches = [new, *mem]
        self.steps.append((batches, [adapt(b).detach().clone() for b in batches]))
        return self.loss(new, mem, adapt)


def parameters(module: nn.Module | None) -> dict[str, Tensor]:
    return {} if module is None else {n: p.detach().clone() for n, p in module.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())
