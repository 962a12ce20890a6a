"""The rehearsal memory: preallocated tensors on the device, vectorised writes.

Slots and draws depend on how many samples have passed, not on what they were, so they are drawn
on the host ahead of the step (`slots`, `draw`); the step only gathers (`read`) and scatters
(`write`) at given indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.errors import expected

Indices = NDArray[np.int64]


class Memory(nn.Module):
    """Storage for `size` samples, with one spare row that takes what is not kept.

    Parameters
    ----------
    size
        How many samples it holds.
    input_shape, dtype
        Of one sample as it is stored: raw, before augmentation.
    columns
        What else is stored with each sample: name → shape, in float32.
    """

    x: Tensor
    y: Tensor

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
        self.register_buffer("x", torch.zeros((size + 1, *input_shape), dtype=dtype))
        self.register_buffer("y", torch.zeros(size + 1, dtype=torch.long))
        self.columns = tuple(columns or {})
        for name, shape in (columns or {}).items():
            self.register_buffer(f"column_{name}", torch.zeros(size + 1, *shape))

    @property
    def filled(self) -> int:
        """How many samples it holds now."""
        return min(self.seen, self.size)

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Where the next n samples of the stream go; `size` means nowhere."""
        raise NotImplementedError

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """Rows of min(n, filled) samples, without replacement."""
        return rng.choice(self.filled, min(n, self.filled), replace=False)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Samples, labels and stored columns at these rows."""
        columns = {name: self.column(name).index_select(0, rows) for name in self.columns}
        return self.x.index_select(0, rows), self.y.index_select(0, rows), columns

    def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Put samples into slots; those sent to the spare row are forgotten."""
        self.x.index_copy_(0, slots, x)
        self.y.index_copy_(0, slots, y)
        for name in self.columns:
            self.column(name).index_copy_(0, slots, columns[name].float())

    def column(self, name: str) -> Tensor:
        """One stored column, the spare row included."""
        return getattr(self, f"column_{name}")  # type: ignore[no-any-return]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._buffers:  # what the spare row holds means nothing
            kept = destination[prefix + name].clone()
            kept[-1] = 0
            destination[prefix + name] = kept

    def get_extra_state(self) -> Tensor:
        """The memory's age, for `state_dict`."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the age from a `state_dict`."""
        self.seen = int(state)
