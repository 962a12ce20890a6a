"""The draws: everything random that a step needs, made on the host ahead of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dualcba.data import Transform
from dualcba.methods import Context, Method
from dualcba.randomness import Array, generator


class Draws:
    """Named generators of one seed, and what the next step takes from them."""

    def __init__(
        self, seed: int, context: Context, method: Method, views: Mapping[str, Transform]
    ) -> None:
        self.rng = {name: generator(seed, name) for name in ("memory", "augmentation", "method")}
        self.context = context
        self.method = method
        self.views = views

    def draw(
        self, step: int, n: int, store: NDArray[np.bool_], *, outer: bool = False
    ) -> dict[str, Array]:
        """The parts of a packet by name, for n new samples; `store`: what memory may take."""
        memory, rng = self.context.memory, self.rng["memory"]
        parts = self._augment("new", n)
        for i in range(self.method.draws if memory.filled else 0):
            parts |= self._rows(f"mem{i}")
        if outer:
            parts |= self._rows("outer")
        for name, view in self.views.items():
            parts[f"view.{name}"] = view.draw(self.rng["augmentation"], n - self.method.labelled)
        parts["slots"] = np.full(n, memory.size)
        parts["slots"][store] = memory.slots(int(store.sum()), rng)
        noise = self.method.noise(self.rng["method"], step)
        return parts if noise is None else {**parts, "noise": noise}

    def _rows(self, name: str) -> dict[str, Array]:
        """A batch of the memory, and how to augment it."""
        rows = self.context.memory.draw(self.context.batch_size, self.rng["memory"])
        return {name: rows, **self._augment(name, len(rows))}

    def _augment(self, name: str, count: int) -> dict[str, Array]:
        transform = self.context.transform
        if not transform.random:
            return {}
        return {f"{name}.augment": transform.draw(self.rng["augmentation"], count)}
