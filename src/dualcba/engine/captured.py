"""The captured engine: a step is captured as a CUDA graph, then replayed with one launch."""

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

from dualcba.engine.eager import Input, on_device
from dualcba.engine.host_to_device import to_device
from dualcba.engine.ranks import Ranks

MAX_GRAPHS = 64
"""The maximum number of graphs; further keys run eagerly."""

MAX_AHEAD = 8
"""The number of replays of a graph by which the host may be ahead of the device."""


class _PinnedUpload:
    """Copies host arrays to a tensor on the device, through a ring of pinned buffers."""

    def __init__(self, static: Tensor) -> None:
        self.static = static
        shape, dtype = static.shape, static.dtype
        host = torch.device("cpu")  # not the default device
        self.buffers = [
            torch.empty(shape, dtype=dtype, device=host, pin_memory=True) for _ in range(MAX_AHEAD)
        ]
        self.copied: list[torch.cuda.Event | None] = [None] * MAX_AHEAD
        self.next = 0

    def send(self, array: NDArray[np.int64]) -> None:
        """Queue a copy, after the copy queued `MAX_AHEAD` calls earlier is done."""
        k, self.next = self.next, (self.next + 1) % MAX_AHEAD
        event = self.copied[k]
        if event is None:
            event = self.copied[k] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            event.synchronize()
        self.buffers[k].numpy()[:] = array
        self.static.copy_(self.buffers[k], non_blocking=True)
        event.record()


@dataclass
class _Entry:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor | _PinnedUpload, ...]


class Captured:
    """Replays functions as CUDA graphs on a separate stream.

    The function of a key is run eagerly `warmup` times, then captured. Inputs are copied into
    buffers of the graph before each replay. A function that cannot be captured is run eagerly, with
    a warning that states the reason.
    """

    def __init__(self, device: torch.device, *, warmup: int = 2) -> None:
        self.device = device
        self.ranks: Ranks | None = None
        self.warmup = warmup
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.entries: dict[Hashable, _Entry] = {}
        self.counts: Counter[Hashable] = Counter()
        self.refused: set[Hashable] = set()
        self.pool = torch.cuda.graph_pool_handle()
        self.stream.wait_stream(torch.cuda.current_stream(device))  # for the caller's tensors

    def __deepcopy__(self, memo: dict[int, object]) -> Captured:
        """Return an engine without graphs, because graphs refer to the tensors of one learner."""
        memo[id(self)] = made = Captured(self.device, warmup=self.warmup)
        made.ranks = self.ranks
        return made

    def run(self, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Replay the graph of the key, capture it, or run `fn` eagerly."""
        entry = self.entries.get(key)
        with torch.cuda.stream(self.stream):
            if entry is None and self._is_due(key):
                entry = self._capture(key, fn, inputs)
            if entry is None:
                self.counts[key] += 1
                fn(*on_device(inputs, self.device))
                return
            for static, given in zip(entry.inputs, inputs, strict=True):
                if isinstance(static, _PinnedUpload):
                    assert isinstance(given, np.ndarray)
                    static.send(given)
                elif static is not given:
                    static.copy_(given, non_blocking=True)  # type: ignore[arg-type]
            entry.graph.replay()

    def replays(self, key: Hashable) -> bool:
        """Return whether the key has been captured."""
        return key in self.entries

    def _is_due(self, key: Hashable) -> bool:
        """Whether to capture the key now; `MAX_GRAPHS` bounds the memory of varying batch sizes."""
        room = len(self.entries) < MAX_GRAPHS
        return room and key not in self.refused and self.counts[key] >= self.warmup

    def _capture(
        self, key: Hashable, fn: Callable[..., None], inputs: tuple[Input, ...]
    ) -> _Entry | None:
        static = tuple(t.clone() for t in on_device(inputs, self.device))
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # freeing CUDA objects of other learners would break the capture
        try:
            with torch.cuda.graph(graph, stream=self.stream, pool=self.pool):
                fn(*static)
        except Exception as error:  # a network or method may fail in any way
            self.refused.add(key)
            name = key[0] if isinstance(key, tuple) else key
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(f"{name!r} cannot be captured and runs eagerly: {reason}", stacklevel=2)
            return None
        finally:
            if collecting:
                gc.enable()
        both = zip(static, inputs, strict=True)
        targets = tuple(s if isinstance(given, Tensor) else _PinnedUpload(s) for s, given in both)
        self.entries[key] = _Entry(graph, targets)
        return self.entries[key]

    def receive(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, ordered after the work of the caller's stream."""
        if not tensor.is_cuda:
            host = tensor.clone() if tensor.is_pinned() else tensor  # the caller may overwrite it
            with torch.cuda.stream(self.stream):
                return to_device(host, self.device)
        caller = torch.cuda.current_stream(tensor.device)
        self.stream.wait_stream(caller)
        with torch.cuda.stream(self.stream):
            copy = tensor.to(self.device, copy=True)
        caller.wait_stream(self.stream)  # the caller may overwrite or free it afterwards
        return copy

    def keep_alive(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of tensors until the work queued on this engine's stream is done."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Run the work inside the context on a second stream, a branch of the captured graph."""
        self.side_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side_stream):
            yield

    def join_branch(self) -> None:
        """Make the current stream wait for the second stream."""
        torch.cuda.current_stream(self.device).wait_stream(self.side_stream)

    def scope(self) -> AbstractContextManager[object]:
        """Return the context of this engine's stream."""
        return torch.cuda.stream(self.stream)

    def finish(self) -> None:
        """Wait until this engine's stream is done."""
        self.stream.synchronize()

    def reset(self) -> None:
        """Discard all graphs."""
        torch.cuda.synchronize(self.device)
        self.entries.clear()
        self.counts.clear()
        self.refused.clear()
        self.pool = torch.cuda.graph_pool_handle()  # a pool ends with its graphs
