"""Pickles of plain arrays, read without running code and without NumPy's own unpickling.

A pickled NumPy dtype may declare object fields, and NumPy would then interpret bytes of the file as
pointers. Here, the names that a pickle may call are replaced by constructors of this module, which
accept only bytes, a shape and one of two dtypes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

DTYPES = {"u1": np.uint8, "i8": np.int64}
PLAIN_STATES = (
    (3, "|", None, None, None, -1, -1, 0),
    (3, "<", None, None, None, -1, -1, 0),
)
"""Pickled states of accepted dtypes: without fields, little-endian or single bytes."""


def load_arrays(content: bytes) -> Any:
    """Return the content of a pickle: built-in containers, numbers, text, bytes and arrays.

    >>> load_arrays(pickle.dumps({"x": np.arange(3, dtype=np.uint8)}, protocol=2))
    {'x': array([0, 1, 2], dtype=uint8)}
    """
    _check_memo(content)
    found = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    if isinstance(found, dict):
        return {key: _unwrap(value) for key, value in found.items()}
    return _unwrap(found)


def _check_memo(content: bytes) -> None:
    """Raise an error if a memo index exceeds the number of objects.

    The unpickler allocates a table with as many entries as the highest index.
    """
    for count, (opcode, number, _) in enumerate(pickletools.genops(content)):
        if opcode.name.endswith("PUT") and (not isinstance(number, int) or number > count):
            raise pickle.UnpicklingError(f"object {count} has the number {number}")


def _unwrap(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value


class _Constructor:
    """A function that a pickle may call; the pickle cannot set its attributes."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("it changes a function, expected only arrays")


class _NDArrayType(_Constructor):
    """Stands for the class `numpy.ndarray`."""

    __slots__ = ()


class _DType:
    """Stands for a dtype: unsigned bytes or 64-bit integers."""

    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        text = _text(code).lstrip("|<")
        if text not in DTYPES:
            raise pickle.UnpicklingError(f"it has an array of {text!r}, expected u1 or i8")
        self.code = text

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple):
            raise pickle.UnpicklingError("a dtype has no state of several parts")
        plain = tuple(_text(part) if isinstance(part, bytes) else part for part in state)
        if plain not in PLAIN_STATES:
            raise pickle.UnpicklingError("it has a dtype with fields, expected a plain one")


class _Array:
    """Stands for an array; its state sets its content."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array has no state of five parts")
        _, shape, dtype, fortran, data = state
        self.array = _make_array(data, dtype, shape, fortran=fortran)


def _make_array(data: Any, dtype: Any, shape: Any, *, fortran: Any) -> NDArray[Any]:
    sizes = shape if isinstance(shape, tuple) else (None,)
    known = isinstance(dtype, _DType) and isinstance(data, bytes | bytearray)
    if not known or fortran is not False or not all(type(n) is int and n >= 0 for n in sizes):
        raise pickle.UnpicklingError("it has an array of another form, expected bytes and a shape")
    if len(sizes) > 4 or math.prod(sizes) * np.dtype(DTYPES[dtype.code]).itemsize != len(data):
        raise pickle.UnpicklingError(f"it has {len(data)} bytes for an array of shape {sizes}")
    return np.frombuffer(bytes(data), DTYPES[dtype.code]).reshape(sizes).copy()


class _MakeDType(_Constructor):
    __slots__ = ()

    def __call__(self, code: Any, align: Any = False, copy: Any = True) -> _DType:
        return _DType(code)


class _Reconstruct(_Constructor):
    """Stands for `numpy.core.multiarray._reconstruct`."""

    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> _Array:
        if not isinstance(kind, _NDArrayType):
            raise pickle.UnpicklingError("it makes another kind of array, expected numpy.ndarray")
        return _Array()


class _FromBuffer(_Constructor):
    """Stands for `numpy.core.numeric._frombuffer`, which newer pickles call."""

    __slots__ = ()

    def __call__(self, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        made = _Array()
        made.array = _make_array(data, dtype, shape, fortran=_text(order) != "C")
        return made


class _Encode(_Constructor):
    """Stands for `_codecs.encode`, which protocol 2 uses for bytes."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or _text(encoding) != "latin1":
            raise pickle.UnpicklingError("it encodes something other than bytes, expected arrays")
        return text.encode("latin1")


class _NoBytes(_Constructor):
    """Stands for `bytes`, which protocol 2 uses for empty bytes."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("latin1")
    if not isinstance(value, str):
        raise pickle.UnpicklingError(f"it holds {type(value).__name__}, expected text")
    return value


_CONSTRUCTORS: dict[tuple[str, str], _Constructor] = {
    ("_codecs", "encode"): _Encode(),
    ("__builtin__", "bytes"): _NoBytes(),
    ("numpy", "ndarray"): _NDArrayType(),
    ("numpy", "dtype"): _MakeDType(),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CONSTRUCTORS:
            raise pickle.UnpicklingError(f"it calls {module}.{name}, expected only arrays")
        return _CONSTRUCTORS[module, name]
