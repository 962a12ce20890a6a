"""The pass over the memory that estimates IBN statistics (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.engine.packet import Array, Layout, pack, unpack
from dualcba.nets import Network
from dualcba.normalization.refresh import WEIGHT
from dualcba.normalization.statistics import (
    batch_norms,
    clear_averages,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
)
from dualcba.prediction.batches import IBN_BATCH, IBN_TOGETHER, portions
from dualcba.training.draws import MemoryDraw
from dualcba.training.parts import Parts


class MemoryPass:
    """Sets the statistics of normalisation layers to averages of batch statistics of the memory.

    `average` and `augment` are the learner's `ibn_average` and `ibn_augment`.
    """

    def __init__(self, parts: Parts, *, average: str, augment: bool) -> None:
        self.context = parts.context
        self.method = parts.method
        self.forward_pass = parts.forward_pass
        self.precision = parts.precision
        self.engine = parts.engine
        self.average = average
        self.augment = augment
        others = [layer for network in parts.method.networks() for layer in batch_norms(network)]
        trained = [layer for layer in others if layer.training]
        self.layers = [*parts.forward_pass.trained_norm_layers, *trained]

    def networks(self) -> list[Network]:
        """Return the trained network and the networks of the method, whose layers are estimated."""
        return [self.context.network, *self.method.networks()]

    def over_all(self, rng: np.random.Generator) -> None:
        """Estimate the layers' statistics from all samples, in random order."""
        packet, layout = pack(self._augmented(rng.permutation(self.context.memory.filled), rng))
        self.engine.run(("ibn", layout), partial(self._over_all, layout=layout), packet)

    def over_part(self, rows: Array, rng: np.random.Generator) -> None:
        """Update the layers' statistics by those of some rows, as a moving average."""
        packet, layout = pack(self._augmented(rows, rng))
        self.engine.run(("ibn part", layout), partial(self._over_part, layout=layout), packet)

    def _augmented(self, rows: Array, rng: np.random.Generator) -> MemoryDraw[Array]:
        """Draw augmentation parameters for rows of the memory."""
        transform = self.context.transform
        augmented = self.augment and transform.random
        return MemoryDraw(rows, transform.draw(rng, len(rows)) if augmented else None)

    def _over_all(self, packet: Tensor, *, layout: Layout) -> None:
        drawn: MemoryDraw[Tensor] = unpack(packet, layout)
        size, most = self._batching()
        with self._averaging() as weigh:
            if self.average != "continued":
                clear_averages(self.layers)
            for k, groups, part in portions(len(drawn.rows), size, most):
                weigh(ibn_momentum(k + 1, self.average))
                self._pass(drawn, part, groups)

    def _over_part(self, packet: Tensor, *, layout: Layout) -> None:
        with self._averaging() as weigh:
            weigh(WEIGHT)
            self._pass(unpack(packet, layout), slice(None))

    @contextmanager
    def _averaging(self) -> Iterator[Callable[[float], None]]:
        """Make the layers average batch statistics; yield a function that sets their momentum."""
        with (
            evaluation_mode(nn.ModuleList(self.networks()), self.layers),
            temporary_momentum(self.layers) as weigh,
            torch.no_grad(),
            self.precision.cast_weights(),
            self.precision.autocast(),
        ):
            yield weigh

    def _pass(self, drawn: MemoryDraw[Tensor], part: slice, groups: int = 1) -> None:
        """Pass a part of the drawn samples, in equal groups, through all networks."""
        x = self.context.memory.samples(drawn.rows[part])
        inputs = self.context.transform(x, None if drawn.augment is None else drawn.augment[part])
        self.forward_pass.estimate(self.networks(), self.layers, inputs, groups)

    def _batching(self) -> tuple[int, int]:
        """Return the batch size, and the largest number of batches that share a forward pass.

        A moving average depends on the batch size, so it uses that of training. A cumulative
        average does not, so its batches can be larger.
        """
        if self.average != "cumulative":
            return max(2, self.context.batch_size), 1
        together = self.forward_pass.samplewise and self.engine.device.type == "cuda"
        return IBN_BATCH, IBN_TOGETHER if together else 1
