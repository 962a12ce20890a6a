"""CLSER: experience replay with a fast and a slow moving average of the network."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine.torch_private import foreach_add_, foreach_mul_, foreach_sub
from dualcba.errors import expected
from dualcba.losses import Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods.base import Context, Method
from dualcba.methods.exemplars import check_flags
from dualcba.nets import Network
from dualcba.normalization.statistics import batch_norms, borrowed_averages, evaluation_mode


class CLSER(Method):
    """Experience replay with consistency to moving averages of the network.

    L = CE(new) + CE(mem) + w·MSE(z(mem), z_ema(mem))

    There are two averages, *stable* and *plastic*. For each sample, z_ema comes from the average
    that assigns a higher probability to the true class (plastic if equal). After each step, each
    average is updated with its own probability: θ_ema ← a·θ_ema + (1 − a)·θ with a = min(1 −
    1/(k + 1), limit), where k is the number of the step in the stream, from 1. Only weights are
    averaged; normalisation uses batch statistics. The consistency term uses raw logits, with or
    without an adaptor. The trained network, not an average, makes the predictions.

    Parameters
    ----------
    weight
        The weight of the consistency term, w.
    stable, plastic
        The probabilities that an average is updated after a step.
    limit
        The upper bound of the rate a.
    draws
        1 or 2; with 2, the consistency term uses a separate memory draw.
    second_pass
        Whether the consistency term passes its draw through the network a second time. The logits
        are the same, but the running statistics are updated once more: they then depend to 70 %
        instead of 53 % on the memory. There is no second pass if the new batch has one sample.

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
        second_pass: bool = False,
    ) -> None:
        super().__init__()
        if draws not in (1, 2):
            raise ValueError(expected("draws", draws, "1 or 2"))
        check_flags(second_pass=second_pass)
        self.draws = draws
        self.second_pass = second_pass
        self.weight = weight
        self.probabilities = (stable, plastic)
        self.limit = limit
        self._cached: tuple[Tensor, Tensor] | None = None  # the inputs and the target of a step

    def bind(self, context: Context) -> None:
        """Initialise both averages with the network."""
        super().bind(context)
        self.stable, self.plastic = (frozen_copy(context.network) for _ in range(2))

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return CE(new) + CE(mem) + w·MSE(z(mem), z_ema(mem))."""
        terms: list[Term] = [CrossEntropy(batch) for batch in (new, *mem[:1])]
        for batch in mem[-1:]:
            if self.second_pass and len(new.x) > 1 and not self._is_cached(batch):
                self._update_statistics(batch)
            target = self.target(batch)
            terms.append(MeanSquaredError(batch, target, self.weight, adapted=False))
        return terms

    def target(self, batch: Batch) -> Tensor:
        """Return z_ema (n, C); computed once per step, for both the inner and the outer step."""
        if self._cached is None or not self._is_cached(batch):
            with torch.no_grad(), self.context.autocast():
                stable = self._logits(self.stable, batch.x)
                plastic = self._logits(self.plastic, batch.x)
            self._cached = batch.x, select_confident(stable, plastic, batch.y)
        return self._cached[1]

    def _logits(self, average: Network, x: Tensor) -> Tensor:
        """Return logits under batch statistics, or the network's running ones for one sample."""
        if len(x) > 1:
            return average(x)[0]  # type: ignore[no-any-return]
        layers = batch_norms(average), batch_norms(self.context.network)
        with evaluation_mode(average), borrowed_averages(*layers):
            return average(x)[0]  # type: ignore[no-any-return]

    def _is_cached(self, batch: Batch) -> bool:
        return self._cached is not None and self._cached[0] is batch.x

    def _update_statistics(self, batch: Batch) -> None:
        """Pass a memory draw through the network again, which updates its running statistics."""
        if len(batch.x) > 1:
            with torch.no_grad(), self.context.autocast():
                self.context.network(batch.x)

    def noise(self, rng: np.random.Generator, step: int) -> NDArray[np.float64]:
        """Return the rates a of the stable and the plastic average; 1 means no update."""
        k = step + 1
        rate = min(1 - 1 / (k + 1), self.limit)
        return np.where(rng.random(2) < self.probabilities, rate, 1.0)

    def after_step(self, noise: Tensor | None) -> None:
        """Update the averages."""
        assert noise is not None
        self._cached = None
        theta = list(self.context.network.parameters())
        rates = torch.where(self.context.good, noise, 1.0)  # a refused step changes nothing
        for average, rate in zip((self.stable, self.plastic), rates.unbind(), strict=True):
            update_average(list(average.parameters()), theta, rate)


def select_confident(z: Tensor, other: Tensor, y: Tensor) -> Tensor:
    """Return for each sample the logits with the higher probability of its class, or `other`.

    >>> z, other = torch.tensor([[3.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> select_confident(z, other, torch.tensor([0, 1])).tolist()
    [[3.0, 0.0], [1.0, 0.0]]
    """
    at = y.unsqueeze(1)
    return torch.where(z.softmax(1).gather(1, at) > other.softmax(1).gather(1, at), z, other)


def update_average(average: Sequence[Tensor], theta: Sequence[Tensor], rate: Tensor) -> None:
    """Set average ← rate · average + (1 − rate) · θ, in place; the rate stays on the device."""
    change = foreach_sub(list(theta), list(average))
    foreach_mul_(change, (1 - rate).to(change[0].dtype))
    foreach_add_(list(average), change)


def frozen_copy(network: Network) -> Network:
    """Return a copy that is not trained and has no running statistics, only batch statistics."""
    copy = deepcopy(network).requires_grad_(False)  # training mode; frozen layers stay frozen
    for layer in batch_norms(copy):
        layer.track_running_stats = False
    return copy
