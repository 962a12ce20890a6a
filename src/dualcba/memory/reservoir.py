"""The reservoir memory."""

from __future__ import annotations

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
        age = self.seen + np.arange(n)
        chosen = (rng.random(n) * (age + 1)).astype(np.int64)
        slots = np.where(age < self.size, age, np.minimum(chosen, self.size))
        self.seen += n
        return last_wins(slots, self.size)


def last_wins(slots: Indices, spare: int) -> Indices:
    """Send all but the last sample of each slot to the spare row, as sequential writes would.

    >>> last_wins(np.array([3, 1, 3]), spare=9).tolist()
    [9, 1, 3]
    """
    out = [spare] * len(slots)
    for slot, i in {slot: i for i, slot in enumerate(slots.tolist())}.items():
        out[i] = slot
    return np.array(out, np.int64)
