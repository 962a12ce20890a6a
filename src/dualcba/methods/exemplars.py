"""The base class of iCaRL, LUCIR and BiC: a teacher, and exemplars selected by herding."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba.errors import expected
from dualcba.memory import Exemplars, Herding
from dualcba.methods.base import Context
from dualcba.methods.teacher import DistillationMethod
from dualcba.normalization.statistics import evaluation_mode

CHUNK = 512  # samples per forward pass of `embed`


def check_flags(**flags: object) -> None:
    """Raise unless all values are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(expected(name, value, "True or False"))


class ExemplarMethod(DistillationMethod):
    """A method with a teacher and a memory of exemplars of each class.

    Exemplars are selected from all samples of a task when it ends. During a task the memory holds
    exemplars of earlier tasks only.

    Parameters
    ----------
    rehearse
        Whether each step uses a draw of exemplars with the new batch. If not, exemplars are only
        used at the end of a task (and for class means).
    merge
        Whether exemplars are instead mixed into the samples of a task: shuffled with them, each
        once per pass, in batches that share statistics. `dualcba run` does this; a loop that calls
        `observe` itself then has no exemplars in its steps.
    negatives
        Whether mixed exemplars are inverted: a byte v becomes 256 − v, and 0 stays. The code
        released with the conference paper on CBA does this with Tiny-ImageNet, by an overflow.
    """

    adaptable = False
    rereads_task = True
    stores_in_steps = False

    def __init__(
        self, *, rehearse: bool = True, merge: bool = False, negatives: bool = False
    ) -> None:
        super().__init__()
        check_flags(rehearse=rehearse, merge=merge, negatives=negatives)
        if negatives and not merge:
            raise ValueError(expected("negatives", negatives, "False, or merge=True"))
        self.merge, self.negatives = merge, negatives
        self.draws = int(rehearse and not merge)

    def make_memory(
        self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int
    ) -> Exemplars:
        """Return a memory of exemplars with the same number for each class."""
        return Herding(size, shape, dtype, held_out=self.held_out)

    def bind(self, context: Context) -> None:
        """Create the teacher."""
        types = (part.dtype for part in context.network.inputs.parts)
        given = next((str(dtype) for dtype in types if dtype is not torch.uint8), None)
        if self.negatives and given is not None:
            raise ValueError(expected("the dtype of samples", given, "torch.uint8 with negatives"))
        super().bind(context)

    def mixed(self, x: Tensor) -> Tensor:
        """Transform the exemplars that are mixed into the samples of a task."""
        return -x if self.negatives else x  # of bytes: modulo 256

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Select exemplars by herding on normalised features."""
        cast(Herding, self.memory).fill(x, y, lambda raw: self.direction(self.embed(raw)[1]))

    def direction(self, h: Tensor) -> Tensor:
        """Return the features (n, d) on which herding selects exemplars: normalised."""
        return F.normalize(h)

    @property
    def memory(self) -> Exemplars:
        """The memory of exemplars."""
        return cast(Exemplars, self.context.memory)

    @torch.no_grad()
    def embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features of raw samples, in evaluation mode without augmentation."""
        context = self.context
        with evaluation_mode(context.network), context.autocast():
            parts = [context.network(context.transform(part)) for part in torch.split(x, CHUNK)]
        z, h = zip(*parts, strict=True)
        return torch.cat(z), torch.cat(h)
