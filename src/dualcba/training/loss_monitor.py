"""The losses of recent steps, to find where one ceased to be finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine import Engine

RECENT = 1024
"""How many losses are kept."""


class RecentLosses:
    """A ring of losses on the device: that of step s lies at s mod `RECENT`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.values = torch.zeros(RECENT, device=engine.device)

    def place(self, step: int) -> NDArray[np.int64]:
        """Where the loss of a step goes, as a part of its packet."""
        return np.array([step % RECENT])

    def write(self, at: Tensor, loss: Tensor) -> None:
        """Keep a loss, on the device and without waiting for it."""
        self.values.index_copy_(0, at, loss.detach().float().view(1))

    def due(self, step: int) -> bool:
        """Whether to look now: on a CPU after every step, where looking is free."""
        return self.engine.device.type == "cpu" or step % (RECENT // 2) == 0

    def check(self, step: int, task_starts: Sequence[int]) -> None:
        """Raise a `FloatingPointError` if one of the last losses before `step` was not finite."""
        cpu = self.engine.device.type == "cpu"
        if cpu and step and math.isfinite(self.values[(step - 1) % RECENT].item()):
            return
        steps = np.arange(step - min(step, RECENT), step)
        if cpu:  # the others were fine
            steps = steps[-2:]
        with self.engine.scope():
            index = torch.from_numpy(steps % RECENT).to(self.engine.device)
            losses = self.values[index].cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(losses))
        if not len(bad):
            return
        at = int(steps[bad[0]])
        task = int(np.searchsorted(task_starts, at, side="right"))
        last = f"{losses[bad[0] - 1]:.4g}" if bad[0] else "unknown"
        raise FloatingPointError(
            f"the loss became {losses[bad[0]]} at step {at + 1} in task {task}; "
            f"the last finite loss was {last}; a smaller learning rate may help"
        )
