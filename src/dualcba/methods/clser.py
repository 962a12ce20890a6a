"""Complementary learning systems: experience replay with a fast and a slow average of the net."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.errors import expected
from dualcba.losses import Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods.base import Context, Method
from dualcba.nets import Network
from dualcba.normalization.statistics import batch_norms, evaluation_mode


class CLSER(Method):
    """Experience replay that also keeps memories where two averages of the network have them.

    L = CE(new) + CE(mem) + w·MSE(z(mem), z_ema(mem))

    z_ema is, for each sample, of the *stable* or of the *plastic* average: of the one that gives
    the true class more probability (plastic if equal). After each step either average moves with
    its probability, θ_ema ← a·θ_ema + (1 − a)·θ, at the rate a = min(1 − 1/(k + 1), limit), where k
    counts the steps of the whole stream from 1. Averages are of the weights; normalisation is by
    batch statistics. The consistency term is of raw logits, adaptor or not, and the network that
    is trained is the one that predicts.

    Parameters
    ----------
    weight
        Of the consistency term, w.
    stable, plastic
        How likely either average moves after a step.
    limit
        The highest rate.
    draws
        2 gives the consistency term a draw of its own, which passes the network beside the others.

    References
    ----------
    Arani et al., Learning fast, learning slow: a general continual learning method based on
    complementary learning system, ICLR 2022.
    """

    title = "CLSER"
    semi_supervised = True

    def __init__(
        self,
        *,
        weight: float = 0.1,
        stable: float = 0.7,
        plastic: float = 0.9,
        limit: float = 0.999,
        draws: int = 1,
    ) -> None:
        super().__init__()
        if draws not in (1, 2):
            raise ValueError(expected("draws", draws, "1 or 2"))
        self.draws = draws
        self.weight = weight
        self.probabilities = (stable, plastic)
        self.limit = limit
        self._kept: tuple[Tensor, Tensor] | None = None  # a memory view and its target

    def bind(self, context: Context) -> None:
        """Both averages begin as the network itself."""
        super().bind(context)
        self.stable, self.plastic = (_frozen_copy(context.network) for _ in range(2))

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """CE(new) + CE(mem) + w·MSE(z(mem), z_ema(mem))."""
        terms: list[Term] = [CrossEntropy(batch) for batch in (new, *mem[:1])]
        for batch in mem[-1:]:
            target = self.target(batch)
            terms.append(MeanSquaredError(batch, target, self.weight, adapted=False))
        return terms

    def target(self, batch: Batch) -> Tensor:
        """z_ema (n, C); worked out once a step, though outer and inner loss ask for it."""
        if self._kept is None or self._kept[0] is not batch.x:
            with torch.no_grad(), self.context.autocast():
                z_stable, z_plastic = _logits(self.stable, batch.x), _logits(self.plastic, batch.x)
            self._kept = batch.x, select_confident(z_stable, z_plastic, batch.y)
        return self._kept[1]

    def noise(self, rng: np.random.Generator, step: int) -> NDArray[np.float64]:
        """The rates of the stable and of the plastic average; 1 where it does not move."""
        k = step + 1
        rate = min(1 - 1 / (k + 1), self.limit)
        return np.where(rng.random(2) < self.probabilities, rate, 1.0)

    def after_step(self, noise: Tensor | None) -> None:
        """Move the averages."""
        assert noise is not None
        self._kept = None
        theta = list(self.context.network.parameters())
        for average, rate in zip((self.stable, self.plastic), noise.unbind(), strict=True):
            update_average(list(average.parameters()), theta, rate)


def select_confident(z: Tensor, other: Tensor, y: Tensor) -> Tensor:
    """For each sample the logits that give its class more probability; `other` if equal.

    >>> z, other = torch.tensor([[3.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> select_confident(z, other, torch.tensor([0, 1])).tolist()
    [[3.0, 0.0], [1.0, 0.0]]
    """
    at = y.unsqueeze(1)
    return torch.where(z.softmax(1).gather(1, at) > other.softmax(1).gather(1, at), z, other)


def update_average(average: Sequence[Tensor], theta: Sequence[Tensor], rate: Tensor) -> None:
    """average ← rate · average + (1 − rate) · θ, in place; the rate stays on the device."""
    way = torch._foreach_sub(list(theta), list(average))
    torch._foreach_mul_(way, (1 - rate).to(way[0].dtype))
    torch._foreach_add_(list(average), way)


def _logits(average: Network, x: Tensor) -> Tensor:
    """By batch statistics; a lone sample has none and takes those the copy was made with."""
    with evaluation_mode(average) if len(x) == 1 else nullcontext():
        return average(x)[0]  # type: ignore[no-any-return]


def _frozen_copy(network: Network) -> Network:
    copy = deepcopy(network).requires_grad_(False)  # in training; frozen layers stay frozen
    for layer in batch_norms(copy):
        layer.track_running_stats = False  # batch statistics only; nobody asks for the others
    return copy
