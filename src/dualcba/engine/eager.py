"""The engine interface, and the eager engine, which calls functions directly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine.host_to_device import to_device
from dualcba.engine.ranks import Ranks

Input = Tensor | NDArray[np.int64]
"""A tensor on the device, or a small array on the host."""


def on_device(inputs: Iterable[Input], device: torch.device) -> tuple[Tensor, ...]:
    """Return the inputs as tensors; arrays are copied to the device."""
    return tuple(
        t if isinstance(t, Tensor) else to_device(torch.from_numpy(t), device) for t in inputs
    )


class Engine(Protocol):
    """Runs functions that update tensors on the device in place and return None."""

    device: torch.device
    ranks: Ranks | None  # the processes that share the work; None for a single process

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Call `fn` with the inputs as tensors on the device, without waiting for the result.

        Calls with equal keys must do the same work on inputs of equal shapes.
        """

    def replays(self, key: Hashable) -> bool:
        """Return whether `run` with this key replays a graph, so that no Python code is called."""

    def receive(self, tensor: Tensor) -> Tensor:
        """Return a caller's tensor on the device, safe to use in work queued on this engine."""

    def keep_alive(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of the caller's tensors until the work queued so far is done."""

    def branch(self) -> AbstractContextManager[object]:
        """Return a context inside `run` whose work may run in parallel until `join_branch`."""

    def join_branch(self) -> None:
        """Make later work wait for the work of `branch`."""

    def scope(self) -> AbstractContextManager[object]:
        """Return the context for device work outside `run`."""

    def finish(self) -> None:
        """Wait until all work so far is done, so that any stream can read the results."""

    def reset(self) -> None:
        """Discard captured graphs; call it when tensors have been replaced."""


class Eager:
    """Calls each function directly."""

    def __init__(self, device: torch.device, ranks: Ranks | None = None) -> None:
        self.device = device
        self.ranks = ranks

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Call `fn` with the inputs on the device."""
        with self.scope():
            fn(*on_device(inputs, self.device))

    def replays(self, key: Hashable) -> bool:
        """Return False."""
        return False

    def receive(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device."""
        return tensor.to(self.device)

    def keep_alive(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing: all work runs on the caller's stream."""

    def branch(self) -> AbstractContextManager[object]:
        """Return an empty context: nothing runs in parallel."""
        return nullcontext()

    def join_branch(self) -> None:
        """Do nothing: nothing runs in parallel."""

    def scope(self) -> AbstractContextManager[object]:
        """Return the context of the engine's GPU, on which Triton kernels are launched."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def finish(self) -> None:
        """Do nothing: all work runs on the caller's stream."""

    def reset(self) -> None:
        """Do nothing: there are no graphs."""
