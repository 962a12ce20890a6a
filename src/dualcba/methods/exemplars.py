"""What iCaRL, LUCIR and BiC share: a teacher, and exemplars chosen by herding at a task's end."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.memory import Herding
from dualcba.methods.base import Context, Method
from dualcba.methods.teacher import Teacher
from dualcba.normalization.statistics import evaluation_mode

CHUNK = 512


class ExemplarMethod(Method):
    """Distils the network of the task's start and keeps exemplars of each class.

    The current task's samples are read again at its end, to choose its exemplars among all of
    them; while a task runs the memory holds earlier ones only.

    Parameters
    ----------
    rehearse
        Whether each step joins a draw of exemplars to the new batch. Without it they only serve
        at the ends of tasks (and as class means).
    """

    adaptable = False
    rereads_task = True
    held_out = 0  # every so-many-th exemplar is kept for validation

    def __init__(self, *, rehearse: bool = True) -> None:
        super().__init__()
        self.draws = int(rehearse)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Herding:
        """Exemplars, as many of each class."""
        return Herding(size, shape, dtype, held_out=self.held_out)

    def bind(self, context: Context) -> None:
        """Copy the network."""
        super().bind(context)
        self.teacher = Teacher(context)

    def begin_task(self) -> None:
        """The teacher is the network as it is now."""
        self.teacher.refresh()

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Choose exemplars by their normalised features."""
        self.memory.fill(x, y, lambda raw: F.normalize(self.embed(raw)[1]))

    @property
    def memory(self) -> Herding:
        """The exemplars."""
        return cast(Herding, self.context.memory)

    @torch.no_grad()
    def embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Raw samples → logits and features in evaluation mode, without augmentation."""
        context = self.context
        with evaluation_mode(context.network), context.autocast():
            parts = [context.network(context.transform(part)) for part in torch.split(x, CHUNK)]
        z, h = zip(*parts, strict=True)
        return torch.cat(z), torch.cat(h)
