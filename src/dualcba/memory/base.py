"""The rehearsal memory: preallocated tensors on the device with vectorised reads and writes.

Slots and draws depend only on the number of samples so far, so they are drawn on the host before
the step (`slots`, `draw`). The step itself only gathers (`read`) and scatters (`write`) at given
indices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.engine.ranks import Ranks
from dualcba.errors import expected

Indices = NDArray[np.int64]


class Memory(nn.Module):
    """Storage for `size` samples, and a spare row for samples that are not kept.

    Parameters
    ----------
    size
        The maximum number of stored samples.
    input_shape, dtype
        The shape and dtype of a stored sample: raw, before augmentation.
    columns
        Further tensors stored with each sample, in float32: name → shape.
    """

    x: Tensor
    y: Tensor
    ranks: Ranks | None = None  # the processes that share the rows, see `split`

    stale: Tensor | None = None
    """(size + 1,) bool, on the host: rows that were written since a read-out last read them.

    Set by the read-out; None without one.
    """

    births: tuple[Tensor, Tensor] | None = None
    """(size + 1,) the step at which the sample of each row was stored, and () the current step.

    Set by a monitor; None without one.
    """

    def __init__(
        self,
        size: int,
        input_shape: tuple[int, ...],
        dtype: torch.dtype = torch.uint8,
        columns: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(expected("buffer", size, "at least 1"))
        self.size = size
        self.seen = 0
        gib = (size + 1) * math.prod(input_shape) * dtype.itemsize / 2**30
        if gib >= 2**33:  # more bytes than torch can count
            wanted = f"fewer samples: these would need {gib:,.0f} GiB"
            raise ValueError(expected("buffer", size, wanted))
        self.register_buffer("x", torch.zeros((size + 1, *input_shape), dtype=dtype))
        self.register_buffer("y", torch.zeros(size + 1, dtype=torch.long))
        self.columns = tuple(columns or {})
        for name, shape in (columns or {}).items():
            self.register_buffer(f"column_{name}", torch.zeros(size + 1, *shape))
        self.register_state_dict_post_hook(_clear_spare_row)  # type: ignore[no-untyped-call]

    @property
    def filled(self) -> int:
        """The number of stored samples."""
        return min(self.seen, self.size)

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw the rows for the next n samples of the stream; `size` means not stored."""
        raise NotImplementedError

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw the rows of min(n, filled) samples, without replacement."""
        return rng.choice(self.filled, min(n, self.filled), replace=False)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the samples, labels and columns of these rows."""
        columns = {name: self._select(self.column(name), rows) for name in self.columns}
        return self._select(self.x, rows), self.y.index_select(0, rows), columns

    def samples(self, rows: Tensor) -> Tensor:
        """Return the samples of these rows."""
        return self._select(self.x, rows)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Store samples in the rows drawn by `slots`; the spare row discards samples."""
        self.y.index_copy_(0, slots, y)
        if self.ranks is not None:
            slots = self._own(self.ranks, slots)[0]
        self.x.index_copy_(0, slots, x)
        for name in self.columns:
            self.column(name).index_copy_(0, slots, columns[name].float())
        if self.births is not None:
            born, now = self.births
            born.index_copy_(0, slots, now.expand(len(slots)))

    def column(self, name: str) -> Tensor:
        """Return a stored column, including the spare row."""
        return getattr(self, f"column_{name}")  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ several ranks

    def split(self, ranks: Ranks) -> None:
        """Keep a share of the samples and columns: row k is on rank k mod the number of ranks.

        Labels stay on all ranks. From now on `read` is a collective call that returns whole rows.
        """
        self.ranks = ranks
        for name in self.split_names():
            setattr(self, name, self.own_share(getattr(self, name)))

    def split_names(self) -> list[str]:
        """Return the names of the buffers of which each rank has a share."""
        return ["x", *(f"column_{name}" for name in self.columns)]

    def own_share(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of a whole buffer, padded to the same number on each rank.

        The spare row follows them.
        """
        assert self.ranks is not None
        own = whole[self.ranks.rank : self.size : self.ranks.size]
        missing = -(-self.size // self.ranks.size) - len(own)
        return torch.cat([own, own.new_zeros(missing, *own.shape[1:]), whole[-1:]])

    def whole(self, own: Tensor) -> Tensor:
        """Return a whole buffer from the shares of all ranks; the spare row is zero."""
        assert self.ranks is not None
        rows = self.ranks.stack(own[:-1]).transpose(0, 1).flatten(0, 1)[: self.size]
        return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])

    def _own(self, ranks: Ranks, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the position of each row in this rank's share, and which rows are in the share.

        The position of other rows is the spare row.
        """
        mine = (rows % ranks.size == ranks.rank) & (rows < self.size)
        spare = -(-self.size // ranks.size)
        return torch.where(mine, rows // ranks.size, spare), mine

    def _select(self, stored: Tensor, rows: Tensor) -> Tensor:
        if self.ranks is None:
            return stored.index_select(0, rows)
        at, mine = self._own(self.ranks, rows)
        found = stored.index_select(0, at)
        mine = mine.view(-1, *[1] * (found.dim() - 1))
        return self.ranks.sum_(torch.where(mine, found, 0).to(found.dtype))

    def get_extra_state(self) -> Tensor:
        """Return the number of samples seen, for `state_dict`."""
        return torch.tensor(self.seen, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Load the number of samples seen from a `state_dict`."""
        self.seen = int(state)


def _clear_spare_row(memory: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Set the spare row to zero in a `state_dict`, so that equal memories have equal states."""
    for name, _buffer in memory.named_buffers(recurse=False):
        state[prefix + name] = state[prefix + name].clone()
        state[prefix + name][-1].zero_()  # an assignment would wait for a GPU
