"""Standardise vectors by the running mean and variance of all samples so far."""

from __future__ import annotations

import torch
from torch import Tensor

from dualcba.data.transforms import Transform

EPS = torch.finfo(torch.float32).eps
TINY = torch.finfo(torch.float32).tiny


class Standardise(Transform):
    """Return (x − mean) / std of each feature, with statistics of all samples passed to `update`.

    Counts, means and sums of squared deviations are in float64 and are combined batch by batch
    (Chan, Golub and LeVeque, 1983), so that large means and long streams lose no precision. `scale`
    and `shift` are updated in place, also for transforms that share these tensors. A feature that
    is constant so far, up to the rounding of float32, becomes 0.


    >>> t = Standardise((2,))
    >>> for batch in ([[1e6, 5.0], [1e6 + 2, 5.0]], [[1e6 + 4, 5.0]]):
    ...     t.update(torch.tensor(batch))
    >>> t.mean.tolist(), round(float(t.squares[0] / t.count), 4)
    ([1000002.0, 5.0], 2.6667)
    >>> t(torch.tensor([[1e6 + 2, 7.0]])).abs().round(decimals=1).tolist()
    [[0.0, 0.0]]
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        (features,) = shape
        super().__init__([0.0] * features, [1.0] * features)
        self.shape, self.dtype = shape, torch.float32
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(features, dtype=torch.float64))
        self.refresh()

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add a batch of raw samples (n, features), without waiting for the device."""
        x, n = x.double(), len(x)
        mean = x.sum(0) / n  # exact for equal values
        delta, total = mean - self.mean, self.count + n
        apart = delta.square() * (self.count * n / total)
        self.squares.add_((x - mean).square_().sum(0).add_(apart))
        self.mean.add_(delta * (n / total))
        self.count.copy_(total)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Set `scale` and `shift` from the statistics, in place."""
        std = (self.squares / self.count.clamp(min=1)).sqrt()
        constant = std <= (EPS * self.mean.abs()).clamp(min=TINY)
        scale = torch.where(constant, 0.0, 1 / std)
        self.scale.copy_(scale)
        self.shift.copy_(-self.mean * scale)
