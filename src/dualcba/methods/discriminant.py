"""A linear discriminant from sums of features, for the read-out `lda` and a control experiment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.methods.nearest_mean import FeatureRule

FLOOR = 1e-6
"""The variance added to each feature within classes, as a share of the features' mean square."""

TINY = torch.finfo(torch.float64).tiny
"""The variance added if all features are zero."""


def shrink(covariance: Tensor, n: Tensor) -> Tensor:
    """Return (1 − s)·Σ + s·μ·I with μ the mean of the diagonal and s by the OAS formula."""
    D = len(covariance)
    mean, square = covariance.trace() / D, (covariance**2).mean()
    below = (n + 1) * (square - mean**2 / D)
    s = torch.where(below > 0, (square + mean**2) / below, 1.0).clamp(max=1)
    return (1 - s) * covariance + s * mean * torch.eye(D, dtype=mean.dtype, device=mean.device)


class ShrinkageLDA:
    """A linear discriminant from sums over samples, with a shrunk covariance.

    >>> lda = ShrinkageLDA(1, 2, torch.device("cpu"))
    >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]], dtype=torch.float64)
    >>> lda.update(x, torch.tensor([0, 0, 1, 1]))
    >>> weight, bias = lda.classifier()
    >>> (x @ weight + bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, features: int, classes: int, device: torch.device) -> None:
        zeros = torch.zeros(features + classes, features, dtype=torch.float64, device=device)
        self.products, self.sums = zeros[:features], zeros[features:]  # Σ φφᵀ, Σ φ of each class
        self.counts = zeros.new_zeros(classes)

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums by name."""
        return {"products": self.products, "sums": self.sums, "counts": self.counts}

    def clear(self) -> None:
        """Reset the sums."""
        for tensor in self.tensors().values():
            tensor.zero_()

    def update(self, phi: Tensor, y: Tensor) -> None:
        """Add features (n, D) and labels (n,) to the sums, except samples with the label −1."""
        classes = torch.arange(len(self.counts), device=y.device)
        member = (y.unsqueeze(1) == classes).to(phi.dtype)
        labelled = phi * (y >= 0).unsqueeze(1)
        self.products.addmm_(labelled.T, labelled)
        self.sums.addmm_(member.T, phi)
        self.counts += member.sum(0)

    def classifier(self) -> tuple[Tensor, Tensor]:
        """Return weights (D, C) and bias (C,) of the scores; −∞ for a class without samples."""
        counts = self.counts.clamp(min=1).unsqueeze(1)
        means, n = self.sums / counts, self.counts.sum().clamp(min=1)
        covariance = (self.products - means.T @ self.sums) / n
        floor = FLOOR * self.products.trace() / (n * len(covariance)) + TINY
        covariance.diagonal().add_(floor)  # invertible, even if all samples of a class are equal
        weight = torch.linalg.solve(shrink(covariance, n), means.T)
        bias = -0.5 * (means.T * weight).sum(0)
        return weight, bias.masked_fill(self.counts == 0, -torch.inf)


def discriminant_scores(z: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the scores (n, C) of features h (n, d); the logits z if no class has a sample.

    The network was trained on the samples of the memory, so their variance is too small and the
    softmax of the scores too confident: 1.0 where 86 % were correct. The scores of each sample are
    therefore scaled to the spread of its logits, which does not change their order.
    """
    known = bias.isfinite()
    with torch.autocast(h.device.type, enabled=False):
        scores = torch.addmm(bias, F.normalize(h.to(weight.dtype)), weight)
        scores, logits = _centred(scores, known), _centred(z.to(weight.dtype), known)
        ratio = logits.norm(dim=1) / scores.norm(dim=1).clamp(min=1e-12)
        scores = scores * torch.where(ratio > 0, ratio, 1.0).unsqueeze(1)
        scores = scores.masked_fill(~known, -torch.inf)
    return torch.where(known.any(), scores, z)


def _centred(scores: Tensor, known: Tensor) -> Tensor:
    """Return scores (n, C) of classes in a mask (C,), with mean 0; 0 for the others."""
    scores = scores.masked_fill(~known, 0.0)
    return (scores - scores.sum(1, keepdim=True) / known.sum().clamp(min=1)) * known


class Discriminant(FeatureRule):
    """The linear discriminant of normalised features, updated in place."""

    tensors = ("weight", "bias")

    def __init__(self, num_classes: int, like: Tensor) -> None:
        self.lda = ShrinkageLDA(like.shape[1], num_classes, like.device)
        self.weight = like.new_zeros(like.shape[1], num_classes)
        self.bias = like.new_zeros(num_classes)

    def update(self, rows: Tensor, y: Tensor) -> None:
        """Sum over `rows` of samples with labels (n,); `finish` computes the classifier."""
        self.lda.clear()
        with torch.autocast(rows.device.type, enabled=False):
            self.lda.update(rows.double(), y)

    def finish(self) -> None:
        """Compute the classifier from the sums."""
        weight, bias = self.lda.classifier()
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def clear(self) -> None:
        """Reset the classifier: no class has a score."""
        self.weight.zero_()
        self.bias.fill_(-torch.inf)

    def scores(self, z: Tensor, h: Tensor) -> Tensor:
        """Return scores (n, C), see `discriminant_scores`."""
        return discriminant_scores(z, h, self.weight, self.bias)
