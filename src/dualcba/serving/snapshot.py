"""A model for predictions only, for other threads and processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.nets.inputs import Inputs, Samples
from dualcba.prediction.batches import PREDICT_BATCH
from dualcba.tasks.labels import as_list
from dualcba.training.precision import default_modes


class Snapshot:
    """A copy of a learner's model for predictions, made by `Learner.snapshot`.

    It has its own weights, statistics and labels, and they never change. So any number of threads
    can use it, and it can be pickled.

    Parameters
    ----------
    model
        Maps raw samples to scores; a module, or a function on the host.
    num_classes
        The number of classes.
    inputs
        The shapes and types of a sample's inputs, as in the learner.
    labels
        The label of each class, if they are not 0, 1, and so on.
    bf16
        Whether the learner computes in bfloat16.
    step
        The number of steps that the learner had made.
    device
        The device of the model.
    convert
        Whether to accept numbers of any type and to return NumPy arrays, as an estimator does.

    >>> from dualcba import Learner
    >>> _ = torch.manual_seed(0)
    >>> learner = Learner(nn.Linear(4, 2), (4,), 2, dtype=torch.float32, buffer=8, lr=0.3)
    >>> snapshot, x = learner.snapshot(), torch.eye(4)
    >>> torch.equal(snapshot.predict(x), learner.predict(x))
    True
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], Tensor],
        num_classes: int,
        inputs: Inputs,
        *,
        labels: NDArray[Any] | None = None,
        bf16: bool = False,
        step: int = 0,
        device: str | torch.device = "cpu",
        convert: bool = False,
    ) -> None:
        self.model = model
        self.num_classes, self.inputs = num_classes, inputs
        self.labels = None if labels is None else labels.copy()
        self.bf16, self.step, self.convert = bf16, step, convert
        self.device = torch.device(device)

    @property
    def classes_(self) -> list[Any]:
        """The labels of the classes, in the order of the scores."""
        return list(range(self.num_classes)) if self.labels is None else as_list(self.labels)

    def logits(self, x: Samples) -> Any:
        """Return the scores of each class, (n, num_classes); their softmax gives probabilities.

        The score of a class that is not predicted, such as an unseen class, is −∞.
        """
        return self._out(self._scores(x))

    def predict(self, x: Samples) -> Any:
        """Return the predicted class of each sample, (n,), or its label, as the learner does."""
        classes = self._scores(x).argmax(1)
        return classes if self.labels is None else self.labels[classes.numpy()]

    def predict_proba(self, x: Samples) -> Any:
        """Return the probability of each class, (n, num_classes)."""
        return self._out(self._scores(x).softmax(1))

    def to(self, device: str | torch.device) -> Self:
        """Return a copy on another device. On a CPU it computes in float32."""
        made = copy.copy(self)
        made.device = torch.device(device)
        if isinstance(self.model, nn.Module):
            made.model = copy.deepcopy(self.model).to(made.device)
        made.bf16 = self.bf16 and made.device.type == self.device.type
        return made

    def for_estimator(self, labels: NDArray[Any] | None) -> Self:
        """Return the same model with the inputs and outputs of a scikit-learn estimator.

        If the learner's samples are float32, it accepts numbers of any type. It returns arrays.
        `labels` are the labels of the classes, if the learner has none.
        """
        made = copy.copy(self)
        made.labels, made.convert = self.labels if labels is None else labels.copy(), True
        return made

    def _scores(self, x: Samples) -> Tensor:
        samples = self._check(x)
        autocast: Any = nullcontext()
        with default_modes(self.device), torch.no_grad():
            if self.bf16:
                kind = self.device.type
                autocast = torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False)
            with autocast:
                parts = torch.split(samples, PREDICT_BATCH)
                return torch.cat([self.model(part.to(self.device)).cpu() for part in parts])

    def _check(self, x: Samples) -> Tensor:
        if self.convert and self.inputs.dtype == torch.float32 and not isinstance(x, Tensor):
            x = np.asarray(x, dtype=np.float32)
        return self.inputs.check(x, "given")

    def _out(self, t: Tensor) -> Any:
        return t.numpy() if self.convert else t
