"""The eager engine: every call runs as it is written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine.transfer import to_device

Input = Tensor | NDArray[np.int64]
"""A tensor on the device, or a small array on the host."""


class Engine(Protocol):
    """Runs functions that change device state in place and return nothing."""

    device: torch.device

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Run `fn` on the inputs, all of them as tensors on the device, without waiting for it.

        Calls with equal keys do the same work on inputs of equal shapes.
        """

    def receive(self, tensor: Tensor) -> Tensor:
        """A caller's tensor on the device, ready for this engine's work and safe until then."""

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that the caller made and may drop while work on them is still queued."""

    def branch(self) -> AbstractContextManager[object]:
        """Inside `run`: work that may go on beside what follows, until `join`."""

    def join(self) -> None:
        """Wait, on the device, for the work of the branch."""

    def scope(self) -> AbstractContextManager[object]:
        """Where the learner's device work outside `run` belongs."""

    def finish(self) -> None:
        """Wait until all work so far is done, so that anyone may read its results."""

    def reset(self) -> None:
        """Forget whatever was prepared: tensors may have moved."""


class Eager:
    """Runs each function directly."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Call it."""
        with self.scope():
            fn(*(t if isinstance(t, Tensor) else self._upload(t) for t in inputs))

    def _upload(self, array: NDArray[np.int64]) -> Tensor:
        return to_device(torch.from_numpy(array), self.device)

    def receive(self, tensor: Tensor) -> Tensor:
        """On the device."""
        return tensor.to(self.device)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Everything runs on the caller's own stream, as does what comes after it."""

    def branch(self) -> AbstractContextManager[object]:
        """At once, like everything."""
        return nullcontext()

    def join(self) -> None:
        """Nothing is under way."""

    def scope(self) -> AbstractContextManager[object]:
        """The current stream; of several GPUs its own, where our kernels are to be launched."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def finish(self) -> None:
        """Everything runs on the caller's own stream: nothing to wait for."""

    def reset(self) -> None:
        """Nothing was prepared."""
