"""Masks of the new, old and seen classes, of static shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.engine.host_to_device import to_device
from dualcba.errors import expected


class ClassSets(nn.Module):
    """The class sets of the current task, as masks over all C classes.

    A class is *new* if the current task announced it. It is *old* if it is not new, and an earlier
    task announced it or it has appeared in the stream. Other classes are unseen.

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
        self.assigned = num_classes  # the number of outputs with a class, which come first
        self.task = -1
        self.register_buffer("new", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("owner", torch.full((num_classes,), -1))  # announcing task
        self.register_buffer("before", self.owner.clone())  # `owner` when the task began
        self.register_buffer("later", torch.zeros(()))  # 0 in the first task, then 1

    def new_task(self, classes: Sequence[int]) -> None:
        """Check the new classes of the next task, and begin it."""
        self.check(classes)
        self.begin(classes)

    def begin(self, classes: Sequence[int]) -> None:
        """Begin the next task without a check; `classes` may be empty if they are unknown."""
        self.task += 1
        self.before.copy_(self.owner)
        self.set_new(classes)
        self.later.fill_(float(self.task > 0))

    def set_new(self, classes: Sequence[int]) -> None:
        """Replace the new classes of the current task, in place."""
        index = to_device(
            torch.tensor(list(classes), dtype=torch.long, device="cpu"), self.new.device
        )
        self.new.zero_().index_fill_(0, index, True)
        self.seen.logical_or_(self.new)
        self.owner.copy_(self.before.masked_fill(self.new, self.task))

    def check(self, classes: Sequence[int], hint: str = "") -> None:
        """Raise unless these are valid labels, at least one.

        `hint` is appended to the error if a label is not a whole number.
        """
        whole = [isinstance(c, int | np.integer) and not isinstance(c, bool) for c in classes]
        valid = [w and 0 <= c < self.num_classes for w, c in zip(whole, classes, strict=True)]
        if not valid or not all(valid):
            wanted = f"at least one label from 0 to {self.num_classes - 1}" + hint * (
                not all(whole)
            )
            raise ValueError(expected("classes of the new task", list(classes), wanted))

    def appear(self, y: Tensor, *, all_labelled: bool = False) -> None:
        """Add the labels of a batch, on the device, to the seen classes; −1 means no label.

        `all_labelled` says that no label is −1, which is faster.
        """
        if all_labelled:
            self.seen.index_fill_(0, y, True)
            return
        present = torch.zeros(self.num_classes + 1, dtype=torch.bool, device=y.device)
        self.seen.logical_or_(present.index_fill_(0, y, True)[:-1])  # −1 is the spare last entry

    def centred_log(self, counts: Tensor) -> Tensor:
        """Return log(1 + counts), minus its mean over seen classes, and 0 for unseen classes.

        >>> sets = ClassSets(3); sets.new_task([0, 1])
        >>> sets.centred_log(torch.tensor([7.0, 1.0, 0.0])).exp().round(decimals=3).tolist()
        [2.0, 0.5, 1.0]
        """
        logs = counts.log1p() * self.seen
        mean = logs.sum() / self.seen.sum().clamp(min=1)
        return (logs - mean) * self.seen

    @property
    def old(self) -> Tensor:
        """The classes that were seen and are not new."""
        return self.seen > self.new

    def get_extra_state(self) -> Tensor:
        """Return the number of the task, for `state_dict`."""
        return torch.tensor(self.task, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Load the number of the task from a `state_dict`."""
        self.task = int(state)
