"""The base class of exemplar memories, which are filled when a task ends, not in steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dualcba.engine.ranks import Ranks
from dualcba.memory.base import Indices, Memory


class Exemplars(Memory):
    """A memory that takes samples when a task ends. Nothing is written during a task.

    Parameters
    ----------
    held_out
        Exclude every `held_out`-th row from the draws, for validation; 0 excludes none.
    """

    def __init__(
        self,
        size: int,
        input_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        *,
        held_out: int = 0,
    ) -> None:
        super().__init__(size, input_shape, dtype)
        self.held_out = held_out

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Return `size` for all samples: nothing is stored during a task."""
        return np.full(n, self.size)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Do nothing: exemplars are selected when a task ends."""

    def split(self, ranks: Ranks) -> None:
        """Do nothing: every rank stores all exemplars and selects the same ones."""

    def split_names(self) -> list[str]:
        """Return an empty list: each rank has all rows."""
        return []

    @property
    def validation(self) -> slice:
        """The rows that `draw` excludes."""
        return _validation_rows(self.filled, self.held_out)

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw the rows of at most n samples, without replacement."""
        rows = drawable_rows(self.filled, self.held_out)
        return rng.choice(rows, min(n, len(rows)), replace=False)


def _validation_rows(filled: int, held_out: int) -> slice:
    return slice(held_out - 1, filled, held_out) if held_out else slice(0)


def drawable_rows(filled: int, held_out: int) -> Indices:
    """Return the rows that are not held out for validation.

    >>> drawable_rows(5, 2).tolist()
    [0, 2, 4]
    """
    return np.delete(np.arange(filled), _validation_rows(filled, held_out))
