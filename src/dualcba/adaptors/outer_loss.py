"""The outer loss: the method's own outer loss, or a cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dualcba.losses import Batch, CrossEntropy, Shifted, Term
from dualcba.methods import Method
from dualcba.tasks.class_sets import ClassSets

OuterTerms = Callable[[Batch], list[Term]]
"""Maps the outer batch to the terms of the outer loss."""


def make_outer_terms(kind: str | None, method: Method, sets: ClassSets) -> OuterTerms:
    """Return a function that returns the terms of the outer loss.

    `"method"` uses the terms of the method, `"ce"` the cross-entropy alone, and `"adjusted"` the
    cross-entropy at z + log π, where π is the share of each class in the outer draw. The optimum of
    the last is that of balanced classes, however the batch is drawn. π is estimated from the
    samples that the batch is drawn from, plus one sample of each seen class (`Batch.frequencies`).
    """
    if kind == "ce":
        return _cross_entropy
    if kind == "adjusted":
        return partial(_adjusted, sets)
    return partial(_own, method)


# module-level functions, so that a deep copy of the learner refers to its own method and sets


def _cross_entropy(batch: Batch) -> list[Term]:
    return [CrossEntropy(batch)]


def _adjusted(sets: ClassSets, batch: Batch) -> list[Term]:
    assert batch.frequencies is not None
    log_shares = sets.centred_log(batch.frequencies).to(batch.z.dtype)
    return [Shifted(CrossEntropy(batch), log_shares)]


def _own(method: Method, batch: Batch) -> list[Term]:
    return method.outer_terms(batch)
