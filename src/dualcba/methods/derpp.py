"""DER++: dark experience replay."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.losses import Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods.base import Method


class DERpp(Method):
    """Rehearse stored logits from one memory draw, and labels from another.

    L = CE(new) + α·MSE(z(mem₁), stored logits) + β·CE(mem₂)

    The logits of a sample are stored when it enters the memory. With a bias adaptor, z and the
    stored logits are adapted, or both raw with the option `targets="raw"`. The outer loss uses raw
    logits: CE + MSE to the stored raw logits.

    Parameters
    ----------
    alpha, beta
        The weights of the stored logits and of the labels.

    References
    ----------
    Buzzega et al., Dark experience for general continual learning: a strong, simple baseline,
    NeurIPS 2020.
    """

    title = "DER++"
    semi_supervised = True
    draws = 2
    columns = ("logits", "raw_logits")

    def __init__(self, *, alpha: float = 0.2, beta: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return CE(new) + α·MSE(mem₁) + β·CE(mem₂)."""
        if not mem:
            return [CrossEntropy(new)]
        first, second = mem
        raw = self.raw_targets
        stored = "raw_logits" if raw else "logits"
        return [
            CrossEntropy(new),
            MeanSquaredError(first, first.columns[stored], self.alpha, adapted=not raw),
            CrossEntropy(second, self.beta),
        ]

    def outer_terms(self, outer_batch: Batch) -> list[Term]:
        """Return CE + MSE to the stored raw logits, both with weight 1."""
        return [
            CrossEntropy(outer_batch),
            MeanSquaredError(outer_batch, outer_batch.columns["raw_logits"]),
        ]
