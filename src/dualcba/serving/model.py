"""A learner's prediction as one module: preprocessing, network, read-out, classes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.prediction import Predictor


class Model(nn.Module):
    """Maps raw samples (n, *input_shape) to scores (n, C), as a learner does at one moment.

    Normalisation layers have the statistics that the learner predicts with, in their buffers.

    Parameters
    ----------
    transform
        Normalises raw samples; its random part is not used.
    scorer
        Maps normalised inputs to scores of all outputs.
    hidden
        (C,) bool: classes that are not predicted; their scores are −∞.
    """

    hidden: Tensor

    def __init__(self, transform: Transform, scorer: nn.Module, hidden: Tensor) -> None:
        super().__init__()
        self.transform = transform
        self.scorer = scorer
        self.register_buffer("hidden", hidden)
        self.hides = bool(hidden.any())
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, C) of raw samples."""
        scores: Tensor = self.scorer(self.transform(x)).float()[:, : len(self.hidden)]
        return scores.masked_fill(self.hidden, -torch.inf) if self.hides else scores


def frozen_model(predictor: Predictor, statistics: str, step: int, classes: int) -> Model:
    """Return a module that predicts as the predictor does now, for the first `classes` outputs."""
    if not classes:
        raise ValueError("there is no class yet, expected observe or new_task before")
    with predictor.evaluating(statistics, step, predictor.refresh):
        seen = predictor.context.sets.seen[:classes]
        hidden = seen.any() & ~seen if predictor.seen_only else torch.zeros_like(seen)
        transform = copy.deepcopy(predictor.context.transform)
        model = Model(transform, predictor.scorer(), hidden)
    predictor.engine.finish()
    return model
