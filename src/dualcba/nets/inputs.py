"""The inputs of a network: one tensor per sample, or several that are stored as one row of bytes.

All other modules use one tensor per batch. Several inputs are packed into rows of bytes, in which
each part starts at a multiple of 8 bytes. So the parts are views of the rows, of any type, and
methods, memories, engines and states need no code for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call

from dualcba.data.dataset import check_finite, check_samples
from dualcba.errors import expected

WHOLE = (torch.int32, torch.int64)
"""Types of tokens and other whole numbers, which are passed to the network unchanged."""

DTYPES = (torch.uint8, torch.float32, *WHOLE)
"""Types of raw samples."""

Samples = ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor] | Sequence[ArrayLike | Tensor]
"""Raw samples as the caller passes them: an array, or one array for each of several inputs."""

ALIGNMENT = 8
"""The alignment of parts in bytes, which is the size of the largest type."""


@dataclass(frozen=True)
class Part:
    """One input of a network: the shape of one sample, and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def check(self, x: Any, name: str) -> Tensor:
        """Check the shape and type of samples; `name` describes them in error messages."""
        whole = self.dtype in WHOLE
        samples = check_samples(x, name, self.shape, whole=whole)
        kind = getattr(x, "dtype", samples.dtype)
        if whole and not (samples.is_floating_point() or samples.dtype == torch.bool):
            return self._cast(samples, name)
        if samples.dtype == self.dtype:
            return samples
        raise ValueError(expected(f"dtype of {name} x", str(kind), str(self.dtype)))

    def _cast(self, samples: Tensor, name: str) -> Tensor:
        """Return whole numbers in this type; raise if one is too large for it."""
        cast = samples.to(self.dtype)
        if samples.dtype.itemsize > cast.dtype.itemsize and not bool((cast == samples).all()):
            value = int(samples[cast != samples][0])
            raise ValueError(expected(f"a value of {name} x", value, f"one that fits {self.dtype}"))
        return cast


class Inputs:
    """One input per sample, the default.

    >>> Inputs(Part((2,), torch.int64)).check([[1, 2], [3, 4]], "observed").dtype
    torch.int64
    """

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.shape, self.dtype = parts[0].shape, parts[0].dtype
        self.given_shape: Any = self.shape  # `input_shape` as the caller gave it

    @property
    def whole(self) -> bool:
        """Whether samples are whole numbers, or rows of bytes, that no transform applies to."""
        return self.dtype in WHOLE

    def check(self, x: Any, name: str) -> Tensor:
        """Return samples as they are stored, (n, *shape), or raise a `ValueError`."""
        return self.parts[0].check(x, name)

    def unpack(self, x: Tensor) -> list[Tensor]:
        """Return the parts of stored samples."""
        return [x]

    def call(self, module: nn.Module, x: Tensor, weights: Mapping[str, Tensor]) -> Any:
        """Call a network with samples; `weights`, if any, replace weights of the network."""
        return _call(module, (x,), {}, weights)

    def pack(self, values: Sequence[Any]) -> Any:
        """Combine the parts of samples into the form in which they are stored."""
        return values[0]

    @property
    def floats(self) -> bool:
        """Whether a part of the samples has floats."""
        return any(p.dtype.is_floating_point for p in self.parts)

    def map_floats(self, change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a function to the floats (n, ...) of samples."""
        return change(x)


class SeveralInputs(Inputs):
    """Several inputs per sample, stored as one row of bytes.

    Parameters
    ----------
    parts
        The inputs in their order.
    names
        The keywords by which they are passed to the network; None to pass them by position.

    >>> inputs = SeveralInputs((Part((3,), torch.float32), Part((1,), torch.int64)))
    >>> rows = inputs.check((torch.ones(2, 3), [[5], [6]]), "observed")
    >>> tuple(rows.shape), rows.dtype, [tuple(part.shape) for part in inputs.unpack(rows)]
    ((2, 24), torch.uint8, [(2, 3), (2, 1)])
    """

    whole = True

    def __init__(self, parts: Sequence[Part], names: Sequence[str] | None = None) -> None:
        super().__init__(*parts)
        self.names = None if names is None else tuple(names)
        sizes = [math.prod(p.shape) * p.dtype.itemsize for p in parts]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self.places = [slice(a, a + size) for a, size in zip(starts, sizes, strict=False)]
        self.shape, self.dtype = (starts[-1],), torch.uint8
        shapes = tuple(p.shape for p in parts)
        self.given_shape = shapes if names is None else dict(zip(names, shapes, strict=True))

    def check(self, x: Any, name: str) -> Tensor:
        """Check a tuple or dict of arrays and return it as rows; rows are accepted too."""
        if isinstance(x, Tensor | np.ndarray):
            rows = Part(self.shape, self.dtype).check(x, name).contiguous()
            for label, part in zip(self._labels(), self.unpack(rows), strict=True):
                if part.is_floating_point():
                    check_finite(part, f"part {label} of {name}")
            return rows
        labels, given = self._labels(), self._given(x, name)
        named = [f"part {label} of {name}" for label in labels]
        values = [p.check(v, label) for p, v, label in zip(self.parts, given, named, strict=True)]
        for value, label in zip(values, named, strict=True):
            if len(value) != len(values[0]):
                wanted = f"{len(values[0])}, as in part {labels[0]}"
                raise ValueError(expected(f"number of samples in {label} x", len(value), wanted))
        return self.pack(values)

    def pack(self, values: Sequence[Any]) -> Tensor:
        """Return checked parts as rows (n, size) of bytes."""
        parts = [torch.as_tensor(v) for v in values]
        n = len(parts[0])
        rows = torch.zeros(n, *self.shape, dtype=torch.uint8, device=parts[0].device)
        for part, place in zip(parts, self.places, strict=True):
            rows[:, place] = part.reshape(n, -1).contiguous().view(torch.uint8)
        return rows

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """Return the parts of rows, each (n, *shape), as views."""
        both = zip(self.parts, self.places, strict=True)
        return [rows[:, at].view(p.dtype).view(-1, *p.shape) for p, at in both]

    def call(self, module: nn.Module, x: Tensor, weights: Mapping[str, Tensor]) -> Any:
        """Call a network with the parts of rows; uint8 becomes [0, 1]."""
        parts = [p / 255 if p.dtype == torch.uint8 else p for p in self.unpack(x)]
        if self.names is None:
            return _call(module, tuple(parts), {}, weights)
        return _call(module, (), dict(zip(self.names, parts, strict=True)), weights)

    def map_floats(self, change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a function to the floats (n, d) of rows.

        The result is x itself if the function returns its argument.
        """
        floats = [part.flatten(1) for part in self.unpack(x) if part.is_floating_point()]
        before = torch.cat(floats, 1)
        after = change(before)
        if after is before:
            return x
        rows = x.clone()
        parts = [part for part in self.unpack(rows) if part.is_floating_point()]
        sizes = [f.shape[1] for f in floats]
        for part, values in zip(parts, after.split_with_sizes(sizes, 1), strict=True):
            part.copy_(values.view(part.shape))
        return rows

    def _labels(self) -> list[str]:
        return [repr(n) for n in (range(len(self.parts)) if self.names is None else self.names)]

    def _given(self, x: Any, name: str) -> list[Any]:
        """Return the parts in their order, or raise."""
        if self.names is None:
            wanted = f"a tuple of {len(self.parts)} arrays"
            if not isinstance(x, tuple | list) or len(x) != len(self.parts):
                given = f"{len(x)} arrays" if isinstance(x, tuple | list) else type(x).__name__
                raise ValueError(expected(f"{name} x", given, wanted))
            return list(x)
        if not isinstance(x, Mapping) or set(x) != set(self.names):
            found: Any = sorted(map(str, x)) if isinstance(x, Mapping) else type(x).__name__
            raise ValueError(expected(f"{name} x", found, f"a dict of {', '.join(self._labels())}"))
        return [x[n] for n in self.names]


def _call(
    module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor],
    weights: Mapping[str, Tensor],
) -> Any:  # fmt: skip
    if not weights:
        return module(*args, **named)
    return functional_call(module, dict(weights), args, named, tie_weights=False)


def logits_of(out: Any) -> Any:
    """Return the logits in the result of a network; in Hugging Face models they are a field."""
    return out if isinstance(out, Tensor) else getattr(out, "logits", out)


def make_inputs(shape: Any, dtype: Any) -> Inputs:
    """Return the inputs of a learner from its `input_shape` and `dtype`.

    A dict or tuple of shapes means several inputs; then `dtype` is one type, or a dict or tuple.

    >>> make_inputs({"ids": (4,), "image": (1, 2, 2)}, torch.int64).shape
    (64,)
    """
    if isinstance(shape, Mapping):
        names, shapes = list(shape), list(shape.values())
    elif _nested(shape):
        names, shapes = None, list(shape)
    else:
        if not isinstance(dtype, torch.dtype):
            raise ValueError(expected("dtype", dtype, "a single type for a single input"))
        return Inputs(Part(check_shape(shape), dtype))
    if names is not None and not (names and all(isinstance(n, str) for n in names)):
        raise ValueError(expected("input_shape", shape, "the names and shapes of the inputs"))
    types = _types(dtype, names, len(shapes))
    parts = [Part(check_shape(s), t) for s, t in zip(shapes, types, strict=True)]
    return SeveralInputs(parts, names)


def _nested(shape: Any) -> bool:
    listed = isinstance(shape, Iterable) and not isinstance(shape, str | Tensor | np.ndarray)
    return listed and any(isinstance(s, tuple | list) for s in shape)


def _types(dtype: Any, names: list[str] | None, count: int) -> list[torch.dtype]:
    if isinstance(dtype, torch.dtype):
        return [dtype] * count
    if isinstance(dtype, Mapping) and names is not None and set(dtype) == set(names):
        return [dtype[name] for name in names]
    if isinstance(dtype, tuple | list) and names is None and len(dtype) == count:
        return list(dtype)
    raise ValueError(expected("dtype", dtype, "one type, or one per input as in input_shape"))


def check_shape(shape: object) -> tuple[int, ...]:
    """Return the shape of one sample, or raise.

    >>> check_shape(64)
    Traceback (most recent call last):
    ...
    ValueError: input_shape is 64, expected the shape of one sample, such as (64,) or (3, 32, 32)
    """
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    if not sizes or not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes):
        wanted = "the shape of one sample, such as (64,) or (3, 32, 32)"
        raise ValueError(expected("input_shape", shape, wanted))
    return tuple(int(n) for n in sizes)
