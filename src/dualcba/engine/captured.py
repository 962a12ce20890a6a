"""The captured engine: a step becomes a CUDA graph, and from then on one launch."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.engine.eager import Input
from dualcba.engine.transfer import to_device

MOST = 64
"""How many graphs are kept."""


AHEAD = 8
"""How many replays of a graph the host may be ahead of the device."""


class _Mail:
    """Brings host arrays of one size to a tensor on the device, through pinned memory in turns."""

    def __init__(self, static: Tensor) -> None:
        self.static = static
        shape, dtype = static.shape, static.dtype
        host = torch.device("cpu")  # whatever the default device is
        self.slots = [
            torch.empty(shape, dtype=dtype, device=host, pin_memory=True) for _ in range(AHEAD)
        ]
        self.read: list[torch.cuda.Event | None] = [None] * AHEAD
        self.turn = 0

    def send(self, array: NDArray[np.int64]) -> None:
        """Queue a copy; waits only for the one that is `AHEAD` turns old."""
        k, self.turn = self.turn, (self.turn + 1) % AHEAD
        event = self.read[k]
        if event is None:
            event = self.read[k] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            event.synchronize()
        self.slots[k].numpy()[:] = array
        self.static.copy_(self.slots[k], non_blocking=True)
        event.record()


@dataclass
class _Entry:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor | _Mail, ...]


class Captured:
    """Replays functions as CUDA graphs on a stream of its own.

    A key is run eagerly `warmup` times, then captured. Inputs are copied into the graph's own
    buffers before each replay. A function that cannot be captured goes on eagerly, with a warning
    that says why.
    """

    def __init__(self, device: torch.device, *, warmup: int = 2) -> None:
        self.device = device
        self.warmup = warmup
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.second = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.entries: dict[Hashable, _Entry] = {}
        self.counts: Counter[Hashable] = Counter()
        self.refused: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle()
        self.stream.wait_stream(torch.cuda.current_stream(device))  # what the caller made so far

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Replay the key's graph, or capture it, or warm up."""
        entry = self.entries.get(key)
        with torch.cuda.stream(self.stream):
            if entry is None and self._is_due(key):
                entry = self._capture(key, fn, inputs)
            if entry is None:
                self.counts[key] += 1
                fn(*self._on_device(inputs))
                return
            for static, given in zip(entry.inputs, inputs, strict=True):
                if isinstance(static, _Mail):
                    assert isinstance(given, np.ndarray)
                    static.send(given)
                elif static is not given:
                    static.copy_(given, non_blocking=True)  # type: ignore[arg-type]
            entry.graph.replay()

    def _on_device(self, inputs: tuple[Input, ...]) -> tuple[Tensor, ...]:
        return tuple(t if isinstance(t, Tensor) else self._upload(t) for t in inputs)

    def _is_due(self, key: Hashable) -> bool:
        """Whether to capture now; a stream of ever new batch sizes fills no more than so many."""
        room = len(self.entries) < MOST
        return room and key not in self.refused and self.counts[key] >= self.warmup

    def _capture(
        self, key: Hashable, fn: Callable[..., None], inputs: tuple[Input, ...]
    ) -> _Entry | None:
        static = tuple(t.clone() for t in self._on_device(inputs))
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what another learner left behind must not be freed in the middle of it
        try:
            with torch.cuda.graph(graph, stream=self.stream, pool=self.pool):
                fn(*static)
        except Exception as error:  # whatever a network or method does that capture forbids
            self.refused.add(key)
            name = key[0] if isinstance(key, tuple) else key
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(f"{name!r} runs eagerly, it cannot be captured: {reason}", stacklevel=2)
            return None
        finally:
            if collecting:
                gc.enable()
        both = zip(static, inputs, strict=True)
        targets = tuple(s if isinstance(given, Tensor) else _Mail(s) for s, given in both)
        self.entries[key] = _Entry(graph, targets)
        return self.entries[key]

    def _upload(self, array: NDArray[np.int64]) -> Tensor:
        return to_device(torch.from_numpy(array), self.device)

    def receive(self, tensor: Tensor) -> Tensor:
        """On the device; what the caller's stream still writes or may free is waited for."""
        if not tensor.is_cuda:
            host = tensor.clone() if tensor.is_pinned() else tensor  # the caller may write on it
            with torch.cuda.stream(self.stream):
                return to_device(host, self.device)
        caller = torch.cuda.current_stream(tensor.device)
        self.stream.wait_stream(caller)
        with torch.cuda.stream(self.stream):
            copy = tensor.to(self.device, copy=True)
        caller.wait_stream(self.stream)  # only then may the caller write on it or free it
        return copy

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Their memory is not used again before the work queued here is done with it."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """A second stream, which becomes a branch of the graph."""
        self.second.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.second):
            yield

    def join(self) -> None:
        """The branch ends here."""
        torch.cuda.current_stream(self.device).wait_stream(self.second)

    def scope(self) -> AbstractContextManager[object]:
        """This engine's stream."""
        return torch.cuda.stream(self.stream)

    def finish(self) -> None:
        """Wait for this engine's stream."""
        self.stream.synchronize()

    def reset(self) -> None:
        """Drop all graphs."""
        torch.cuda.synchronize(self.device)
        self.entries.clear()
        self.counts.clear()
        self.refused.clear()
        self.pool = torch.cuda.graph_pool_handle()  # a pool does not outlive its graphs
