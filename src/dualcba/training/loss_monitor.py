"""The losses of recent steps, for the message of a step that was refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine import Engine

RECENT = 1024
"""The number of recent losses that are stored."""


RATE = "a smaller learning rate may help"
OUTLIER = "on_outlier 'skip' skips such batches, 'clip' clips them"


def loss_slot(step: int) -> NDArray[np.int64]:
    """Return the index at which `LossMonitor.values` holds the loss of a step, as shape (1,)."""
    return np.array([step % RECENT])


class LossMonitor:
    """A ring buffer of losses on the device; the loss of step s is at s mod `RECENT`.

    On a GPU the loss of a refused step is NaN until `check` has found it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.values = torch.zeros(RECENT, device=engine.device)
        self.on_device = engine.device.type != "cpu"

    def write(self, slot: Tensor, loss: Tensor) -> None:
        """Store a loss without waiting for the device."""
        if not self.on_device:
            self.values.numpy()[int(slot)] = loss.item()  # faster than an operation of torch
        else:
            self.values.index_copy_(0, slot, loss.float().view(1))

    def due(self, step: int) -> bool:
        """Return whether to check for refused steps now; on a CPU these raise at once."""
        return self.engine.device.type != "cpu" and step % (RECENT // 2) == 0

    def check(self, step: int, task_starts: Sequence[int]) -> None:
        """Raise a `FloatingPointError` that names the first recent step that was refused, if any.

        This clears the record of refused steps: a second call raises only for later ones.
        """
        steps = np.arange(step - min(step, RECENT), step)
        with self.engine.scope():
            index = torch.from_numpy(steps % RECENT).to(self.engine.device)
            losses = self.values[index].cpu().numpy()
            bad = np.flatnonzero(~np.isfinite(losses))
            if len(bad):
                self.values.nan_to_num_(0.0, 0.0, 0.0)
        if len(bad):
            last = f"{losses[bad[0] - 1]:.4g}" if bad[0] else "unknown"
            reason = "the loss, a gradient or a statistic was not finite, or x had an outlier,"
            raise FloatingPointError(message(reason, int(steps[bad[0]]), task_starts, last))

    def describe(self, reason: str, step: int, task_starts: Sequence[int]) -> str:
        """Return the error message for the current step, which is refused."""
        last = f"{self.values[(step - 1) % RECENT].item():.4g}" if step else "unknown"
        return message(reason, step, task_starts, last)


def message(reason: str, step: int, task_starts: Sequence[int], last: str) -> str:
    """Return the error message for a refused step; `step` counts from 0.

    >>> print(message("the loss became nan", 8, [0, 6], "0.5")[:71])
    the loss became nan at step 9 in task 2; the last finite loss was 0.5;
    """
    task = int(np.searchsorted(task_starts, step, side="right"))
    return (
        f"{reason} at step {step + 1} in task {task}; the last finite loss was {last}; the step "
        f"was undone; {OUTLIER if reason.startswith('x has') else RATE}"
    )
