"""The losses of recent steps, to find the step at which the loss stopped being finite."""

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


def loss_slot(step: int) -> NDArray[np.int64]:
    """Return the index at which `LossMonitor.values` holds the loss of a step, as shape (1,)."""
    return np.array([step % RECENT])


class LossMonitor:
    """A ring buffer of losses on the device; the loss of step s is at s mod `RECENT`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.values = torch.zeros(RECENT, device=engine.device)

    def write(self, slot: Tensor, loss: Tensor) -> None:
        """Store a loss without waiting for the device."""
        self.values.index_copy_(0, slot, loss.detach().float().view(1))

    def due(self, step: int) -> bool:
        """Return whether to check now: after every step on a CPU, where it costs no wait."""
        return self.engine.device.type == "cpu" or step % (RECENT // 2) == 0

    def check(self, step: int, task_starts: Sequence[int]) -> None:
        """Raise a `FloatingPointError` if one of the last losses before `step` was not finite."""
        cpu = self.engine.device.type == "cpu"
        if cpu and step and math.isfinite(self.values[(step - 1) % RECENT].item()):
            return
        steps = np.arange(step - min(step, RECENT), step)
        if cpu:  # earlier losses were checked after their own steps
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
