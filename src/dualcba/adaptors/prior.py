"""The class frequencies that the correction of an adaptor can start from."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Prior(nn.Module):
    """The class frequencies of the inner batches: a moving average over the steps of a task.

    Adding their logarithm to the logits is logit adjustment by label counts. The number of samples
    of each class per step is averaged: at first over all steps of the task, then as a moving
    average with rate `RATE`. Frequencies are smoothed by one sample in 1/`RATE` steps.

    References
    ----------
    Menon et al., Long-tail learning via logit adjustment, ICLR 2021.
    """

    RATE = 0.1

    mean: Tensor
    steps: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_classes))  # samples per step
        self.register_buffer("steps", torch.zeros(()))  # in this task

    def reset(self) -> None:
        """Reset the average, in place."""
        self.mean.zero_()
        self.steps.zero_()

    def update(self, y: Tensor) -> None:
        """Add the labels (n,) of the inner batches of a step; −1 means no label."""
        classes = torch.arange(len(self.mean), device=y.device)
        found = (y[:, None] == classes).sum(0).to(self.mean.dtype)
        self.steps += 1
        self.mean.lerp_(found, (1 / self.steps).clamp(min=self.RATE))

    def counts(self) -> Tensor:
        """Return the number of samples of each class (C,) in 1/`RATE` steps."""
        return self.mean / self.RATE
