"""The outer loss: that of the method, or a cross-entropy for every method."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dualcba.losses import Batch, CrossEntropy, Shifted, Term
from dualcba.methods import Method
from dualcba.tasks.class_sets import ClassSets

OuterTerms = Callable[[Batch], list[Term]]
"""Maps the outer batch to the terms of the outer loss."""


def make_outer_terms(kind: str | None, method: Method, sets: ClassSets) -> OuterTerms:
    """Return the terms of the outer loss of a kind.

    `"method"` gives those of the method, `"ce"` the cross-entropy alone, and `"adjusted"` the
    cross-entropy at z + log π, where π is the share of each class in the outer draw. Its optimum
    is that of balanced classes, however the batch is drawn. π is estimated from the samples that
    the batch is drawn from, with one sample more of each seen class (`Batch.frequencies`).
    """
    if kind == "ce":
        return lambda batch: [CrossEntropy(batch)]
    if kind == "adjusted":
        return lambda batch: [Shifted(CrossEntropy(batch), _log_shares(batch, sets))]
    return lambda batch: method.outer_terms(batch)


def _log_shares(batch: Batch, sets: ClassSets) -> Tensor:
    assert batch.frequencies is not None
    return sets.centred_log(batch.frequencies).to(batch.z.dtype)
