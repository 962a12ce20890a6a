"""A stand-in for CUDA graphs on a CPU: what a captured step does is shown without a GPU.

A call is recorded as the list of its operations, with the addresses of all tensors. A replay runs
these operations again at the same addresses, and no line of Python. So a step that branches by
values, counts on the host, or puts a new tensor in the place of one that it reads later, goes wrong
here as it does in a graph. What would wait for the device, copy from the host or draw random
numbers is refused while recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dualcba.data import transforms
from dualcba.engine import Eager
from dualcba.engine.eager import Input, on_device

WAITING = (
    "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "is_nonzero", "equal",
    "bincount", "histc", "repeat_interleave", "_linalg_check_errors", "_pin_memory",
)  # fmt: skip
"""The beginnings of operations whose results the host must know, or their shapes."""

RANDOM = ("rand", "normal", "uniform", "bernoulli", "multinomial", "native_dropout", "exponential")
FROM_HOST = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, Tensor.new_tensor)
TO_HOST = (Tensor.tolist, Tensor.numpy, Tensor.item, Tensor.cpu, Tensor.__bool__, Tensor.__int__,
           Tensor.__float__, Tensor.__index__)  # fmt: skip


class CaptureError(RuntimeError):
    """A CUDA graph could not be captured here."""


class _Calls(TorchFunctionMode):
    """Refuses calls that need the host, which on a CPU reach no operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FROM_HOST:
            raise CaptureError(f"{func.__name__} copies from the host")
        if func in TO_HOST:
            raise CaptureError(f"{func.__name__} waits for the device")
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(not isinstance(i, Tensor | int | slice | type(None) | type(...)) for i in index):
                raise CaptureError(f"an index {index} is copied from the host")
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Records operations within its context, and runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._modes = ExitStack()

    def __enter__(self) -> Tape:
        with ExitStack() as modes:
            modes.enter_context(torch.device("meta"))  # a tensor without a device fits no other one
            modes.enter_context(_Calls())
            super().__enter__()
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._modes.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check(func, args)
        given = [_address(t) for t in _tensors((args, kwargs))]
        out = func(*args, **kwargs)
        fresh = [(k, t) for k, t in enumerate(_tensors(out)) if _address(t) not in given]
        name = func.__name__
        written = func._schema.is_mutable or name.startswith("native_batch_norm")
        if "empty" not in name and (fresh or written):
            made = [(k, _alias(t)) for k, t in fresh if t.numel()]
            self.operations.append((func, _map(args), _map(kwargs), made))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations again; each result goes where it was the first time."""
        for func, args, kwargs, made in self.operations:
            out = func(*args, **kwargs)
            if made:
                found = list(_tensors(out))
                for k, target in made:
                    target.copy_(found[k])


def _check(func: Any, args: Any) -> None:
    name = func.__name__.split(".")[0]
    if name.startswith(WAITING):
        raise CaptureError(f"{func} waits for the device")
    if name.startswith(RANDOM):
        raise CaptureError(f"{func} draws inside the step")
    if name == "lift_fresh":
        raise CaptureError(f"{func} copies from the host")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = [t for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)]
        if masks and (name == "index" or args[2].numel() != 1):
            raise CaptureError(f"{func} by a mask waits for the device")


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))


def _map(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return _alias(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([_map(part) for part in tree])
    return {k: _map(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _alias(t: Tensor) -> Tensor:
    """Return a tensor at the same address that autograd does not know."""
    return t.detach()


def _one_hot(y: Tensor, classes: int) -> Tensor:
    """Return what `one_hot` does, which on a CPU checks the labels first."""
    return (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).long()


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr() or id(t)


class Taped:
    """What replaces the methods of `Eager`: each key runs twice, is recorded, and then replayed."""

    def __init__(self, warmup: int = 2) -> None:
        self.warmup = warmup
        self.tapes: dict[Hashable, tuple[Tape, tuple[Tensor, ...]]] = {}
        self.counts: Counter[Hashable] = Counter()
        self.replayed: Counter[Hashable] = Counter()

    def run(self, engine: Eager, key: Hashable, fn: Callable[..., None], *inputs: Input) -> None:
        """Run, record or replay."""
        given = on_device(inputs, engine.device)
        if key in self.tapes:
            tape, static = self.tapes[key]
            for target, t in zip(static, given, strict=True):
                target.copy_(t)
            tape.replay()
            self.replayed[key] += 1
            return
        self.counts[key] += 1
        if self.counts[key] <= self.warmup:
            fn(*given)
            return
        static = tuple(t.clone() for t in given)
        with Tape() as tape:
            fn(*static)
        self.tapes[key] = tape, static

    def clear(self) -> None:
        """Discard all tapes, and what was counted for them."""
        self.tapes.clear()
        self.counts.clear()


def replay_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Eager], Taped]:
    """Have learners that are made from now on replay; return what finds the tapes of an engine."""
    made: dict[int, tuple[Eager, Taped]] = {}

    def of(engine: Eager) -> Taped:
        return made.setdefault(id(engine), (engine, Taped()))[1]

    monkeypatch.setattr(transforms, "crop_by_window", transforms.crop_by_gather)  # of a GPU
    monkeypatch.setattr(functional, "one_hot", _one_hot)
    monkeypatch.setattr(Eager, "run", lambda e, key, fn, *inputs: of(e).run(e, key, fn, *inputs))
    monkeypatch.setattr(Eager, "replays", lambda e, key: key in of(e).tapes)
    monkeypatch.setattr(Eager, "reset", lambda e: of(e).clear())
    return of
