"""Which classes are new, which are old, which have not been seen: masks of static shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.engine.transfer import to_device
from dualcba.errors import expected


class ClassSets(nn.Module):
    """The class sets of the current task, over all C classes from the start.

    A class is *new* when the current task announced it, *old* when it was announced or appeared
    in the stream before and is not new, and unseen otherwise.

    >>> sets = ClassSets(4)
    >>> sets.new_task([0, 1]); sets.new_task([2])
    >>> sets.old.tolist(), sets.new.tolist()
    ([True, True, False, False], [False, False, True, False])
    """

    new: Tensor
    seen: Tensor
    later: Tensor
    owner: Tensor
    before: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.task = -1
        self.register_buffer("new", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("owner", torch.full((num_classes,), -1))  # the task that announced it
        self.register_buffer("before", self.owner.clone())  # the same, as the task began
        self.register_buffer("later", torch.zeros(()))  # 0 in the first task, 1 from the second on

    def new_task(self, classes: Sequence[int]) -> None:
        """Begin the next task with these new classes."""
        self.check(classes)
        self.begin(classes)

    def begin(self, classes: Sequence[int]) -> None:
        """`new_task` without a check: its classes may not be known yet."""
        self.task += 1
        self.before.copy_(self.owner)
        self.set_new(classes)
        self.later.fill_(float(self.task > 0))

    def set_new(self, classes: Sequence[int]) -> None:
        """Say anew, in place, which classes the current task brings."""
        index = to_device(
            torch.tensor(list(classes), dtype=torch.long, device="cpu"), self.new.device
        )
        self.new.zero_().index_fill_(0, index, True)
        self.seen.logical_or_(self.new)
        self.owner.copy_(self.before.masked_fill(self.new, self.task))

    def check(self, classes: Sequence[int]) -> None:
        """Raise unless these can be the new classes of a task."""
        whole = [isinstance(c, int | np.integer) and not isinstance(c, bool) for c in classes]
        fine = [w and 0 <= c < self.num_classes for w, c in zip(whole, classes, strict=True)]
        if not fine or not all(fine):
            wanted = f"at least one label from 0 to {self.num_classes - 1}"
            raise ValueError(expected("classes of the new task", list(classes), wanted))

    def appear(self, y: Tensor) -> None:
        """Note the labels of a batch on the device; −1 is no label."""
        here = torch.zeros(self.num_classes + 1, dtype=torch.bool, device=y.device)
        self.seen.logical_or_(here.index_fill_(0, y, True)[:-1])  # −1 falls on the spare place

    @property
    def old(self) -> Tensor:
        """Seen before, and not new."""
        return self.seen > self.new

    def get_extra_state(self) -> Tensor:
        """The number of the task, for `state_dict`."""
        return torch.tensor(self.task)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the number of the task from a `state_dict`."""
        self.task = int(state)
