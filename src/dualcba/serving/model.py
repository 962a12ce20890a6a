"""One module for a learner's predictions: preprocessing, network, read-out, classes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.nets.inputs import logits_of
from dualcba.prediction import Predictor
from dualcba.training.trunk import Trunk


class FrozenTrunk(nn.Module):
    """A copy of a learner's trunk that stays in evaluation mode."""

    module: nn.Module
    transform: Transform

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.module = copy.deepcopy(trunk.module)
        self.transform = copy.deepcopy(trunk.transform)
        self.inputs = trunk.inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of raw samples, in float32."""
        features: Tensor = logits_of(self.inputs.call(self.module, self.transform(x), {}))
        return features.float()


class Model(nn.Module):
    """Maps raw samples (n, *input_shape) to the scores (n, C) of a learner at one point in time.

    The buffers of normalisation layers hold the statistics with which the learner predicts.

    Parameters
    ----------
    transform
        Normalises raw samples; its random part is not used.
    scorer
        Maps normalised inputs to scores of all outputs.
    hidden
        (C,) bool: classes that are not predicted; their scores are −∞.
    trunk
        If the learner caches features: maps raw samples to the inputs of `transform`.
    flip
        Whether to average the scores of images and of their mirror images.
    """

    hidden: Tensor

    def __init__(
        self,
        transform: Transform,
        scorer: nn.Module,
        hidden: Tensor,
        trunk: FrozenTrunk | None = None,
        *,
        flip: bool = False,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.transform = transform
        self.scorer = scorer
        self.flip = flip
        self.register_buffer("hidden", hidden)
        self.hides = bool(hidden.any())
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, C) of raw samples."""
        scores = self._scores(x)
        if self.flip:
            scores = (scores + self._scores(x.flip(-1))) / 2
        return scores.masked_fill(self.hidden, -torch.inf) if self.hides else scores

    def _scores(self, x: Tensor) -> Tensor:
        x = x if self.trunk is None else self.trunk(x)
        scores: Tensor = self.scorer(self.transform(x)).float()
        return scores[:, : len(self.hidden)]


def frozen_model(predictor: Predictor, statistics: str, step: int, classes: int) -> Model:
    """Return a module with the predictor's current predictions for the first `classes` outputs."""
    if not classes:
        raise ValueError("the learner has no class yet, expected observe or new_task first")
    with predictor.evaluating(statistics, step, predictor.refresh):
        seen = predictor.context.sets.seen[:classes]
        hidden = seen.any() & ~seen if predictor.seen_only else torch.zeros_like(seen)
        transform = copy.deepcopy(predictor.context.transform)
        trunk = None if predictor.trunk is None else FrozenTrunk(predictor.trunk)
        model = Model(transform, predictor.scorer(), hidden, trunk, flip=predictor.flip)
    predictor.engine.finish()
    return model
