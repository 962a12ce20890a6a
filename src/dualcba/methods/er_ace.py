"""ER-ACE: experience replay with asymmetric cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.methods.base import Method


class ERACE(Method):
    """Exclude old classes from the softmax of new samples, so that their logits are not reduced.

    L = CE(new; over the classes in the batch and the unseen classes) + CE(mem)

    The second term is used from the second task on.

    References
    ----------
    Caccia et al., New insights on reducing abrupt representation change in online continual
    learning, 2022.
    """

    title = "ER-ACE"

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return masked CE(new) + CE(mem)."""
        sets = self.context.sets
        classes = (~sets.seen).index_fill_(0, new.y, True)
        old = [CrossEntropy(m, each=sets.later.expand(len(m.y))) for m in mem]
        return [CrossEntropy(new, classes=classes), *old]
