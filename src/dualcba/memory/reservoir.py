"""The reservoir memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualcba.memory.base import Indices, Memory


class Reservoir(Memory):
    """Reservoir sampling: every sample so far is stored with the same probability, size / seen.

    >>> memory = Reservoir(2, (1,))
    >>> memory.slots(2, np.random.default_rng(0)).tolist(), memory.filled
    ([0, 1], 2)
    """

    def slots(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw rows by Vitter's algorithm R, for n samples at once."""
        size, ages = self.size, range(self.seen, self.seen + n)
        u = rng.random(n).tolist()  # plain numbers are faster than arrays this small
        drawn = [
            a if a < size else min(int(v * (a + 1)), size) for a, v in zip(ages, u, strict=True)
        ]
        self.seen += n
        return last_wins(drawn, size)


def last_wins(slots: Sequence[int], spare: int) -> Indices:
    """Send all but the last sample of each slot to the spare row, as if writes were sequential.

    >>> last_wins([3, 1, 3], spare=9).tolist()
    [9, 1, 3]
    """
    out = [spare] * len(slots)
    for slot, i in {slot: i for i, slot in enumerate(slots)}.items():
        out[i] = slot
    return np.array(out, np.int64)
