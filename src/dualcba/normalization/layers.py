"""Normalisation layers for training that replace batch normalisation: CN and AdaB²N.

All are subclasses of torch's batch normalisation, so IBN re-estimates their running statistics
like those of plain BN. `convert_normalization` puts them into any network. A layer that needs the
tasks of the samples, or adds a penalty to the loss, implements `TaskAware`; `sample_tasks` and
`collect_penalties` serve all such layers, so no other module depends on a particular layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dualcba.engine.torch_private import BatchNormBase
from dualcba.errors import expected, unknown

GROUPS = 32
MIN_FEATURES = 8  # per group of a vector; smaller groups keep little more than signs


class BatchNorm(BatchNormBase):
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
    def like(cls, layer: BatchNormBase, **options: Any) -> Self:
        """Return a layer of this class with the parameters, statistics and mode of another one."""
        momentum = layer.eta if isinstance(layer, AdaB2N) else layer.momentum
        tensor = next((t for t in (layer.weight, layer.running_mean) if t is not None), None)
        place: dict[str, Any] = {}
        if tensor is not None:
            place = {"device": tensor.device, "dtype": tensor.dtype}
        tracks = layer.running_mean is not None
        new = cls(layer.num_features, layer.eps, momentum, layer.affine, tracks, **place, **options)
        new.weight, new.bias = layer.weight, layer.bias
        new.running_mean, new.running_var = layer.running_mean, layer.running_var
        new.num_batches_tracked = layer.num_batches_tracked
        return new.train(layer.training)


class ContinualNorm(BatchNorm):
    """CN: group normalisation without affine parameters, then batch normalisation.

    The number of groups is 32, or the largest divisor of C below 32. Vectors (n, C) have no spatial
    dimensions, and a group of one feature would be normalised to zero: their groups have at least 8
    features.

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
        """Return the number of groups for the channels of an input (n, C, ...)."""
        C = self.num_features
        vectors = math.prod(input.shape[2:]) == 1  # without n, which is dynamic in exports
        most = min(GROUPS, max(1, C // MIN_FEATURES)) if vectors else GROUPS
        return next(g for g in range(most, 0, -1) if C % g == 0)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised inputs (n, C, ...)."""
        self._check_input_dim(input)
        return super().forward(F.group_norm(input, self.groups(input)).to(input.dtype))


class AdaB2N(BatchNorm):
    """AdaB²N: batch statistics weighted by task, running statistics with adaptive momentum.

    *Training.* With N_t samples of task t in the batch and a learnt parameter ψ_t per task
    (initially 0), task t has the weight a_t, the mean of a Dirichlet posterior. All samples of a
    task have the same weight:

        a_t = (exp ψ_t + N_t) / Σ_s (exp ψ_s + N_s)        μ = Σ_i a_t(i)/N_t(i) · x_i, σ² likewise

    *Evaluation.* The momentum of the running statistics in the k-th forward pass is η_k, between an
    exponential moving average (κ = 1: always η̄) and a cumulative one (κ = 0: 1/k):

        η_1 = η̄^κ        η_k = η_(k−1) / (η_(k−1) + (1 − η̄)^κ)

    *Penalty*, added to the loss; averaged over channels and over the forward passes of a step:

        λ · Σ_layers mean (μ − μ_running)² + mean (σ² − σ²_running)²

    where the running statistics are those after the update, and constants.

    Defaults: κ = 0.4 and λ = 0.1 (both from the authors' grids {0.1, 0.4, 0.7, 1} and
    {0.01, 0.1, 1, 10}), η̄ = 0.1. ψ is trained by the network's optimiser; the penalty applies from
    the first task on.

    Simplifications: the sum over s includes only the tasks in the batch (new and memory samples
    have separate forward passes with few tasks each, and weights that do not sum to one would
    shrink μ towards zero); σ² is the biased variance throughout; the number of ψ_t is fixed, and
    later tasks share the last one.

    If the tasks of the samples are not given (see `sample_tasks`), all samples have the same weight
    and there is no penalty. If `momentum` is set, as IBN does, the layer is plain batch
    normalisation with that momentum.

    References
    ----------
    Lyu et al., Overcoming recency bias of normalization statistics in continual learning: balance
    and adaptation, NeurIPS 2023.
    """

    samplewise = False  # weights depend on the tasks of all samples of the batch
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
        self.register_buffer("rate", rate)  # η_k of the next forward pass
        self.tasks: Tensor | None = None  # (n,) the task of each sample of the next forward pass
        self._pending: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised inputs (n, C, ...)."""
        if not self.training or self.momentum is not None:  # evaluation, or the estimate of IBN
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
        """Return μ and σ², (C,) each: the law of total variance over the samples' own moments."""
        means, variances = x, torch.zeros_like(x)  # (n, C)
        if x.dim() > 2:
            variances, means = torch.var_mean(x, tuple(range(2, x.dim())), correction=0)
        weights = self.contributions(len(x)).unsqueeze(1)  # products: autocast does not cast them
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean).square())).sum(0)

    def contributions(self, n: int) -> Tensor:
        """Return the weights of n samples, (n,) with sum 1."""
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
        """Update the running statistics with η, then update η; record the penalty."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.running_mean.add_(self.rate * (mean - self.running_mean))
            self.running_var.add_(self.rate * (var - self.running_var))
            self.rate.div_(self.rate + (1.0 - self.eta) ** self.kappa)
            self.num_batches_tracked.add_(1)
        if self.tasks is not None and torch.is_grad_enabled():
            penalty = F.mse_loss(mean, self.running_mean.clone())
            self._pending.append(penalty + F.mse_loss(var, self.running_var.clone()))

    def penalty(self) -> Tensor:
        """Return the penalty of the forward passes since the last call, a scalar."""
        pending, self._pending = self._pending, []
        return self.lam * torch.stack(pending).mean() if pending else self.psi.new_zeros(())

    def reset_running_stats(self) -> None:
        """Reset the running statistics, and η to η_1."""
        super().reset_running_stats()
        if hasattr(self, "rate"):  # not yet when the base class calls this in its constructor
            self.rate.fill_(self.eta**self.kappa)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tasks": None, "_pending": []}  # copies and pickles hold no graph


NORMALIZATIONS: dict[str, type[BatchNorm]] = {
    "bn": BatchNorm,
    "cn": ContinualNorm,
    "adab2n": AdaB2N,
}


def convert_normalization(network: nn.Module, name: str, **options: Any) -> nn.Module:
    """Replace every batch normalisation layer of a network in place, and return the network.

    The new layers keep the parameter objects, running statistics and modes of the old ones;
    `options` are passed to their constructor. Layers that already have the right class are kept. A
    layer used in two places is replaced by one layer.

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
    """Whether the module is a batch normalisation layer that is not of this kind."""
    plain = kind is BatchNorm and not isinstance(module, BatchNorm)
    return isinstance(module, BatchNormBase) and type(module) is not kind and not plain


def _replacement(layer: nn.Module, kind: type[BatchNorm], options: dict[str, Any]) -> BatchNorm:
    assert isinstance(layer, BatchNormBase)
    if isinstance(layer.weight, UninitializedParameter):
        wanted = "an initialised layer: call the network once before"
        raise ValueError(expected("a layer of the network", type(layer).__name__, wanted))
    return kind.like(layer, **options)


@runtime_checkable
class TaskAware(Protocol):
    """A layer that uses the tasks of the samples and adds a penalty to the loss."""

    tasks: Tensor | None

    def penalty(self) -> Tensor:
        """Return the penalty of the forward passes since the last call."""


@contextmanager
def sample_tasks(layers: Iterable[nn.Module], tasks: Tensor) -> Iterator[None]:
    """Inside the context, layers that are `TaskAware` have the task of each sample (n,).

    The caller must call `collect_penalties` once per step.
    """
    aware = [layer for layer in layers if isinstance(layer, TaskAware)]
    for layer in aware:
        layer.tasks = tasks
    try:
        yield
    finally:
        for layer in aware:
            layer.tasks = None


def collect_penalties(layers: Iterable[nn.Module]) -> Tensor | None:
    """Return the sum of the layers' penalties, or None if no layer is `TaskAware`."""
    parts = [layer.penalty() for layer in layers if isinstance(layer, TaskAware)]
    return torch.stack(parts).sum() if parts else None
