"""Normalisations to train with: layers that take the place of batch normalisation.

All are `_BatchNorm`s, so IBN re-estimates their running statistics like those of plain BN
(`normalization.batch_norms`, `untracked`, `weighed`). `convert_normalization` puts them into any
network. A layer that needs more than an input has a `tasks` attribute and a `penalty()`;
`sample_tasks` and `penalties` serve any layer that has them, so the learner knows none by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from dualcba.errors import expected, unknown

GROUPS = 32
LEAST = 8  # features per group of a vector: fewer would leave little but their signs


class BatchNorm(_BatchNorm):
    """Plain batch normalisation for inputs (n, C, ...) of any rank.

    >>> BatchNorm(4)(torch.randn(8, 4)).shape, BatchNorm(4)(torch.randn(8, 4, 3, 3)).shape
    (torch.Size([8, 4]), torch.Size([8, 4, 3, 3]))
    """

    samplewise = True

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            wanted = f"(n, {self.num_features}, ...)"
            raise ValueError(expected("shape of the input", tuple(input.shape), wanted))

    @classmethod
    def like(cls, layer: _BatchNorm, **options: Any) -> Self:
        """One of this kind in a layer's place: with its parameters, its statistics, its mode."""
        momentum = layer.eta if isinstance(layer, AdaB2N) else layer.momentum
        own = next((t for t in (layer.weight, layer.running_mean) if t is not None), None)
        place: dict[str, Any] = {}
        if own is not None:
            place = {"device": own.device, "dtype": own.dtype}
        tracks = layer.running_mean is not None
        new = cls(layer.num_features, layer.eps, momentum, layer.affine, tracks, **place, **options)
        new.weight, new.bias = layer.weight, layer.bias
        new.running_mean, new.running_var = layer.running_mean, layer.running_var
        new.num_batches_tracked = layer.num_batches_tracked
        return new.train(layer.training)


class ContinualNorm(BatchNorm):
    """CN: group normalisation without affine parameters, then batch normalisation.

    Groups are 32, or the largest divisor of C below. Vectors (n, C) have no space to average over:
    a group of one feature would be normalised to zero, so there each has at least 8 features.

    References
    ----------
    Pham et al., Continual normalization: rethinking batch normalization for online continual
    learning, ICLR 2022.

    >>> [ContinualNorm(c).groups(torch.zeros(2, c, 8, 8)) for c in (64, 20, 37)]
    [32, 20, 1]
    >>> [ContinualNorm(c).groups(torch.zeros(2, c)) for c in (256, 64, 5)]
    [32, 8, 1]
    """

    def groups(self, input: Tensor) -> int:
        """How many groups the channels of an input (n, C, ...) fall into."""
        C = self.num_features
        vectors = input.numel() == len(input) * C
        most = min(GROUPS, max(1, C // LEAST)) if vectors else GROUPS
        return next(g for g in range(most, 0, -1) if C % g == 0)

    def forward(self, input: Tensor) -> Tensor:
        """Inputs (n, C, ...) → the same shape, normalised."""
        self._check_input_dim(input)
        return super().forward(F.group_norm(input, self.groups(input)).to(input.dtype))


class AdaB2N(BatchNorm):
    """AdaB²N: batch statistics that weigh tasks, running ones with a momentum that adapts.

    *Training.* With N_t samples of task t in the batch and ψ learnt (one per task, starting at 0),
    tasks contribute by the mean of a Dirichlet posterior, samples of a task alike:

        a_t = (exp ψ_t + N_t) / Σ_s (exp ψ_s + N_s)        μ = Σ_i a_t(i)/N_t(i) · x_i, σ² likewise

    *Testing.* The running statistics move by η_k in the k-th forward, between a moving average
    (κ = 1: always η̄) and a cumulative one (κ = 0: 1/k):

        η_1 = η̄^κ        η_k = η_(k−1) / (η_(k−1) + (1 − η̄)^κ)

    *Penalty*, averaged over channels and over the forwards of a step, added to the loss:

        λ · Σ_layers mean (μ − μ_running)² + mean (σ² − σ²_running)²

    with the running statistics after their update, as constants.

    Setting chosen: κ = 0.4, λ = 0.1 (both inside the authors' grids {0.1, 0.4, 0.7, 1} and
    {0.01, 0.1, 1, 10}), η̄ = 0.1, ψ learnt by the network's own optimiser, the penalty from the
    first task on. Simplified: sums over s go over the tasks that the batch has (the protocol sends
    new and memory samples through in separate forwards, where most tasks are absent, and weights
    that do not sum to one would shrink μ towards zero); σ² is the biased one throughout; the number
    of tasks told apart is fixed, later ones share the last ψ. Where the tasks are
    not given (see `sample_tasks`) samples weigh alike and there is no penalty. A `momentum` that is
    set from outside, as IBN does, makes it plain batch normalisation with that momentum.

    References
    ----------
    Lyu et al., Overcoming recency bias of normalization statistics in continual learning: balance
    and adaptation, NeurIPS 2023.
    """

    samplewise = False  # the tasks of all its samples weigh in
    rate: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        kappa: float = 0.4,
        lam: float = 0.1,
        tasks: int = 64,
    ) -> None:
        super().__init__(num_features, eps, None, affine, track_running_stats, device, dtype)
        if not 0.0 <= kappa <= 1.0:
            raise ValueError(expected("kappa", kappa, "a number from 0 to 1"))
        if not lam >= 0.0:
            raise ValueError(expected("lam", lam, "a number of at least 0"))
        if tasks < 1:
            raise ValueError(expected("tasks", tasks, "at least 1"))
        self.eta = 0.1 if momentum is None else momentum
        self.kappa = kappa
        self.lam = lam
        self.psi = nn.Parameter(torch.zeros(tasks, device=device, dtype=dtype))
        rate = torch.full((), self.eta**kappa, device=device, dtype=dtype)
        self.register_buffer("rate", rate)  # η of the next forward
        self.tasks: Tensor | None = None  # (n,) of the samples of the next forward
        self._pending: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:
        """Inputs (n, C, ...) → the same shape, normalised."""
        if not self.training or self.momentum is not None:  # to test, or for IBN's average
            return super().forward(input)
        self._check_input_dim(input)
        if input.numel() == self.num_features:
            wanted = "more than one value per channel in training"
            raise ValueError(expected("shape of the input", tuple(input.shape), wanted))
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        mean, var = self._batch_statistics(x)
        if self.track_running_stats and self.running_mean is not None:
            self._average(mean, var)
        scale = torch.rsqrt(var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(input.dtype)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ², (C,) each; by the law of total variance from those of each sample."""
        means, variances = x, torch.zeros_like(x)  # (n, C)
        if x.dim() > 2:
            variances, means = torch.var_mean(x, tuple(range(2, x.dim())), correction=0)
        weights = self.contributions(len(x)).unsqueeze(1)  # products, since autocast spares them
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean).square())).sum(0)

    def contributions(self, n: int) -> Tensor:
        """How much each of the n samples counts, (n,) with sum 1."""
        if self.tasks is None:
            return self.psi.new_full((n,), 1.0 / n)
        T = len(self.psi)
        known = self.tasks.clamp(0, T - 1)
        member = known.unsqueeze(1) == torch.arange(T, device=known.device)  # (n, T)
        counts = member.sum(0).to(self.psi.dtype)
        posterior = (self.psi.exp() + counts) * (counts > 0)
        each = posterior / posterior.sum() / counts.clamp(min=1.0)
        return (member * each).sum(1)

    def _average(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by η, then η itself; note the penalty."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.running_mean.add_(self.rate * (mean - self.running_mean))
            self.running_var.add_(self.rate * (var - self.running_var))
            self.rate.div_(self.rate + (1.0 - self.eta) ** self.kappa)
            self.num_batches_tracked.add_(1)
        if self.tasks is not None and torch.is_grad_enabled():
            apart = F.mse_loss(mean, self.running_mean.clone())
            self._pending.append(apart + F.mse_loss(var, self.running_var.clone()))

    def penalty(self) -> Tensor:
        """What the forwards since the last call add to the loss, a scalar."""
        pending, self._pending = self._pending, []
        return self.lam * torch.stack(pending).mean() if pending else self.psi.new_zeros(())

    def reset_running_stats(self) -> None:
        """Forget the running statistics and begin with η_1 again."""
        super().reset_running_stats()
        if "rate" in self._buffers:
            self.rate.fill_(self.eta**self.kappa)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tasks": None, "_pending": []}  # a copy has no graph pending


NORMALIZATIONS: dict[str, type[BatchNorm]] = {
    "bn": BatchNorm,
    "cn": ContinualNorm,
    "adab2n": AdaB2N,
}


def convert_normalization(network: nn.Module, name: str, **options: Any) -> nn.Module:
    """Replace every batch normalisation of a network in place; returns the network.

    Affine parameters stay the same objects, running statistics and modes stay as they are;
    `options` go to the new layers. A layer that is of the kind already stays, and a layer used in
    two places remains one layer.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> type(convert_normalization(net, "cn")[1]).__name__
    'ContinualNorm'
    """
    if name not in NORMALIZATIONS:
        raise ValueError(unknown("normalisation", name, NORMALIZATIONS))
    kind = NORMALIZATIONS[name]
    made: dict[nn.Module, nn.Module] = {}
    for module in list(network.modules()):
        for child_name, child in module.named_children():
            if _differs(child, kind):
                made[child] = made.get(child) or _replacement(child, kind, options)
                setattr(module, child_name, made[child])
    return _replacement(network, kind, options) if _differs(network, kind) else network


def _differs(module: nn.Module, kind: type[BatchNorm]) -> bool:
    """Whether it normalises batches in another way than this kind does."""
    plain = kind is BatchNorm and not isinstance(module, BatchNorm)
    return isinstance(module, _BatchNorm) and type(module) is not kind and not plain


def _replacement(layer: nn.Module, kind: type[BatchNorm], options: dict[str, Any]) -> BatchNorm:
    assert isinstance(layer, _BatchNorm)
    if is_lazy(layer.weight):
        wanted = "one with a known number of channels; run the network once before"
        raise ValueError(expected("a layer of the network", type(layer).__name__, wanted))
    return kind.like(layer, **options)


@runtime_checkable
class TaskAware(Protocol):
    """A layer that asks for the samples' tasks and adds something to the loss."""

    tasks: Tensor | None

    def penalty(self) -> Tensor:
        """What the forwards since the last call add to the loss."""


@contextmanager
def sample_tasks(layers: Iterable[nn.Module], tasks: Tensor) -> Iterator[None]:
    """Give the task (n,) of each sample to the layers that use it, in the forwards inside.

    The caller must then collect the `penalties` of each step.
    """
    aware = [layer for layer in layers if isinstance(layer, TaskAware)]
    for layer in aware:
        layer.tasks = tasks
    try:
        yield
    finally:
        for layer in aware:
            layer.tasks = None


def penalties(layers: Iterable[nn.Module]) -> Tensor | None:
    """The sum of what layers add to the loss; nothing where no layer has a penalty."""
    parts = [layer.penalty() for layer in layers if isinstance(layer, TaskAware)]
    return torch.stack(parts).sum() if parts else None
