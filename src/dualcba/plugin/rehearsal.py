"""A rehearsal memory for a training loop of your own: a reservoir with its random generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.checkpoint import check_same_layout, collect_tensors, entries_of
from dualcba.engine.host_to_device import to_device
from dualcba.errors import at_least, expected
from dualcba.memory import Indices, Pool, Reservoir
from dualcba.memory.pool import balanced_rows
from dualcba.plugin.given import labels
from dualcba.plugin.states import State, check_tensors, split_state
from dualcba.randomness import generator, restore_generator
from dualcba.training.precision import default_modes

Samples = tuple[Tensor, Tensor]
"""Raw samples and their labels."""

FIELDS: dict[str, type] = {"size": int, "seed": int, "updates": int, "rng": dict}


class RehearsalMemory:
    """A reservoir of raw samples: each sample so far is stored with the same probability.

    The first samples determine its device, shape and type.

    Parameters
    ----------
    size
        The number of samples that it can hold.
    seed
        The seed of its draws. Pass a different one in each process.

    >>> memory = RehearsalMemory(3)
    >>> for k in range(4):
    ...     memory.update(torch.full((2, 1), k, dtype=torch.uint8), torch.tensor([k, k]))
    >>> len(memory), memory.draw(2)[0].shape
    (3, torch.Size([2, 1]))
    """

    def __init__(self, size: int, *, seed: int = 0) -> None:
        at_least(1, size=size)
        at_least(0, seed=seed)
        self.size, self.seed = size, seed
        self.updates = 0
        self._rng = generator(seed, "memory")
        self._reservoir: Reservoir | None = None

    def __len__(self) -> int:
        return 0 if self._reservoir is None else self._reservoir.filled

    def draw(self, n: int) -> Samples:
        """Draw n samples without replacement, or all if there are fewer."""
        at_least(1, n=n)
        reservoir = self._filled("draw")
        return self._read(reservoir.draw(n, self._rng))

    def draw_balanced(self, n: int, x: Tensor, y: Tensor) -> Samples:
        """Draw n samples, with replacement, evenly over the classes of the memory and of (x, y).

        (x, y) is the current batch. Balanced-CBA uses this draw in its outer step.
        """
        at_least(1, n=n)
        reservoir = self._filled("draw_balanced")
        x, y = self._check(x, y)
        u = torch.from_numpy((np.arange(n) + self._rng.random(n)) / n)
        pool = Pool(reservoir, torch.tensor([len(self)], device=y.device), y, 0)
        labelled = pool.labels >= 0
        # renumber the labels, which may be any numbers, as 0, 1, and so on
        _, classes, counts = torch.unique(
            pool.labels[labelled], return_inverse=True, return_counts=True
        )
        labels = pool.labels.masked_scatter(labelled, classes)
        x, y, _ = pool.read(balanced_rows(labels, counts, to_device(u, y.device)), x)
        return x, y

    def samples(self) -> Samples:
        """Return all stored samples, in a random order that changes with each update; for IBN."""
        self._filled("samples")
        return self._read(generator(self.seed, "ibn", self.updates).permutation(len(self)))

    def update(self, x: Tensor, y: Tensor) -> None:
        """Offer a batch of the stream to the memory: raw samples (n, ...) and labels (n,)."""
        x, y = self._check(x, y)
        if self._reservoir is None:
            with default_modes(x.device):
                self._reservoir = Reservoir(self.size, tuple(x.shape[1:]), x.dtype).to(x.device)
        slots = torch.from_numpy(self._reservoir.slots(len(x), self._rng))
        self._reservoir.write(to_device(slots, x.device), x, y, {})
        self.updates += 1

    def _read(self, rows: Indices) -> Samples:
        assert self._reservoir is not None
        index = to_device(torch.from_numpy(rows), self._reservoir.y.device)
        x, y, _ = self._reservoir.read(index)
        return x, y

    def _filled(self, name: str) -> Reservoir:
        if self._reservoir is None:
            raise ValueError(f"the memory is empty, expected update(x, y) before {name}")
        return self._reservoir

    def _check(self, x: Tensor, y: Tensor) -> Samples:
        """Check samples and labels, and return them on the device of the memory."""
        if not isinstance(x, Tensor) or x.dim() < 2 or not len(x):
            given = tuple(x.shape) if isinstance(x, Tensor) else x
            raise ValueError(expected("x", given, "a tensor of shape (n, ...), n of at least 1"))
        stored = x if self._reservoir is None else self._reservoir.x
        for name, found, wanted in (
            ("shape of one sample", tuple(x.shape[1:]), tuple(stored.shape[1:])),
            ("dtype of the samples", x.dtype, stored.dtype),
        ):
            if found != wanted:
                raise ValueError(expected(name, found, f"{wanted}, as in the memory"))
        y = labels(y, len(x), None, stored.device, "observed")
        return x.detach().to(stored.device), y

    def state_dict(self) -> State:
        """Return a copy of everything the next draw depends on."""
        modules = {} if self._reservoir is None else {"memory": self._reservoir}
        meta = {"size": self.size, "seed": self.seed, "updates": self.updates}
        rng = self._rng.bit_generator.state
        return {"tensors": collect_tensors(modules, {}), "meta": {**meta, "rng": rng}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; if it does not match, raise without any change."""
        tensors, meta = split_state(state, FIELDS)
        if meta["size"] != self.size:
            raise ValueError(expected("size of the state's memory", meta["size"], str(self.size)))
        rng = restore_generator(meta["rng"])
        reservoir = self._empty_for(tensors) if tensors else None
        if reservoir is not None:
            reservoir.load_state_dict(entries_of(tensors, "memory"))
        self._reservoir, self._rng = reservoir, rng
        self.seed, self.updates = meta["seed"], meta["updates"]

    def _empty_for(self, tensors: Mapping[str, Tensor]) -> Reservoir:
        """Return an empty reservoir for the samples of a state; raise if they do not match."""
        x = tensors.get("memory.x")
        if x is None or x.dim() < 2:
            raise ValueError("the state has no entry 'memory.x', expected the stored samples")
        made = Reservoir(self.size, tuple(x.shape[1:]), x.dtype)
        own = collect_tensors({"memory": made}, {})
        if self._reservoir is not None:
            check_same_layout(collect_tensors({"memory": self._reservoir}, {}), tensors)
        check_tensors(own, tensors)
        y, seen = tensors["memory.y"], int(tensors["memory._extra_state"])
        if seen < 0 or bool((y < 0).any()):
            raise ValueError("the state's memory has negative labels or counts, expected none")
        return made.to(x.device if self._reservoir is None else self._reservoir.x.device)
