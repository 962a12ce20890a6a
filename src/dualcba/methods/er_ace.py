"""ER-ACE: experience replay with asymmetric cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dualcba.losses import Batch, CrossEntropy, Term
from dualcba.methods.base import Method
from dualcba.methods.exemplars import check_flags


class ERACE(Method):
    """Exclude old classes from the softmax of new samples, so that their logits are not reduced.

    L = CE(new; over the classes in the batch and the unseen classes) + CE(mem)

    The second term is used from the second task on.

    Parameters
    ----------
    unseen
        Whether the first softmax includes the unseen classes, as in the authors' code. In their
        paper it has only the classes of the batch. This is better with Adam, whose steps do not
        shrink with the gradient: they would lower the logits of unseen classes all the time.

    References
    ----------
    Caccia et al., New insights on reducing abrupt representation change in online continual
    learning, 2022.
    """

    title = "ER-ACE"

    def __init__(self, *, unseen: bool = True) -> None:
        super().__init__()
        check_flags(unseen=unseen)
        self.unseen = unseen

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return masked CE(new) + CE(mem)."""
        sets = self.context.sets
        others = ~sets.seen if self.unseen else torch.zeros_like(sets.seen)
        classes = others.index_fill_(0, new.y, True)
        old = [CrossEntropy(m, each=sets.later.expand(len(m.y))) for m in mem]
        return [CrossEntropy(new, classes=classes), *old]
