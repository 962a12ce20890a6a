"""ER with an asymmetric cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.methods.base import Method


class ERACE(Method):
    """New samples compete with each other only, so they do not push the old classes away.

    L = CE(new; over the classes in the batch and those not yet seen) + CE(mem), the second
    from the second task on.

    References
    ----------
    Caccia et al., New insights on reducing abrupt representation change in online continual
    learning, 2022.
    """

    title = "ER-ACE"
    adaptable = False

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Masked CE(new) + CE(mem)."""
        sets = self.context.sets
        classes = (~sets.seen).index_fill_(0, new.y, True)
        old = [CrossEntropy(m, each=sets.later.expand(len(m.y))) for m in mem]
        return [CrossEntropy(new, classes=classes), *old]
