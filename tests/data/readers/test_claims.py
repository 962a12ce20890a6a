"""Headers that claim more than the file holds: refused before memory is allocated."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualcba.data import from_npz
from dualcba.data.readers.array_pickle import load_arrays
from dualcba.data.readers.idx import read_idx

LITTLE = 8 << 20  # bytes that a refusal may allocate


def refusal(read: Callable[[], Any]) -> str:
    """The message of the error, which comes without a large allocation."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected") as error:
            read()
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)
    return str(error.value)


def npy(header: str, data: bytes = bytes(48)) -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def npz(path: Path, x: bytes) -> Path:
    content = io.BytesIO()
    np.save(content, np.arange(12) % 3)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", content.getvalue())
    return path


def header(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (header("(" * 300 + ")" * 300), "is not an array of numbers"),
        (header("[" * 9000), "is not an array of numbers"),
        (header("-" * 9000 + "1"), "is not an array of numbers"),
        (header("(" + "1, " * 200 + ")"), "expected one with 1 to 32 axes"),
        (header("()"), "expected one with 1 to 32 axes"),
        (header("(-1, -12)"), "is not an array of numbers"),
        (header("(12.0,)"), "is not an array of numbers"),
        (header("(99999999999, 9999999)"), "holds 48 bytes, expected float32 of shape (9999"),
        (header("(12, 2)"), "holds 48 bytes, expected float32 of shape (12, 2)"),
        (header("(12,)", "'|O'"), "is not an array of numbers"),
        (header("(12,)", "('<f4', (2, 2))"), "is not an array of numbers"),
        (header("(12,)", "[('a', '<f4')]"), "is not an array of numbers"),
        (header("(12,)", "'<f16'"), "is not an array of numbers"),
        ("{" * 5000, "is not an array of numbers"),
        ("", "is not an array of numbers"),
    ],
)
def test_npz_headers(tmp_path: Path, text: str, says: str) -> None:
    path = npz(tmp_path / "own.npz", npy(text))
    message = refusal(lambda: from_npz(path))
    assert message.startswith(f"{path}: x ")
    assert says in message


def test_a_member_that_claims_to_be_larger_than_deflate_can_pack(tmp_path: Path) -> None:
    path = npz(tmp_path / "own.npz", npy(header("(250000000, 4)")))
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):  # the uncompressed size
        place = content.index(magic) + offset
        size = len(npy(header("(250000000, 4)"), b"")) + 4_000_000_000
        content[place : place + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    assert "expected float32 of shape (250000000, 4)" in refusal(lambda: from_npz(path))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|u1", "<i8", "|b1", "<f2", "<u2"])
def test_arrays_are_read_as_numpy_reads_them(
    tmp_path: Path, shape: tuple[int, ...], order: Any, dtype: str
) -> None:
    from dualcba.data.readers.npz import _read

    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype, order=order)
    np.savez_compressed(tmp_path / "own.npz", x=x, y=np.zeros(len(x), np.int64))
    read = _read(tmp_path / "own.npz")[0]
    assert read.dtype == x.dtype.newbyteorder("=")
    assert np.array_equal(read.reshape(shape), x)
    assert read.flags.writeable


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ([2**32 - 1] * 3, "holds 3 bytes, expected the shape (4294967295,"),
        ([2**31], "holds 3 bytes, expected the shape (2147483648,)"),
        ([0, 2**32 - 1, 2**32 - 1], "holds more than 0 bytes, expected the shape (0, "),
        ([2], "holds more than 2 bytes, expected the shape (2,)"),
        ([4], "holds 3 bytes, expected the shape (4,)"),
        ([1] * 200, "expected an idx file of bytes with at most 4 axes"),
        ([1] * 255, "expected an idx file of bytes with at most 4 axes"),
        ([], "expected an idx file of bytes with at most 4 axes"),
    ],
)
def test_idx_headers(tmp_path: Path, axes: list[int], says: str, compressed: bool) -> None:
    content = b"\0\0\x08" + bytes([len(axes)]) + struct.pack(f">{len(axes)}I", *axes) + b"abc"
    path = tmp_path / ("x.gz" if compressed else "x")
    path.write_bytes(gzip.compress(content) if compressed else content)
    message = refusal(lambda: read_idx(tmp_path / "x"))
    assert message.startswith(f"{path} ")
    assert says in message


def test_a_pickle_that_numbers_an_object_high() -> None:
    """The unpickler allocates 16 bytes for each number below it: here 32 GiB."""
    put = pickle.LONG_BINPUT + struct.pack("<I", 2**31 - 1)
    with pytest.raises(pickle.UnpicklingError, match="has the number 2147483647"):
        load_arrays(pickle.PROTO + b"\2" + pickle.EMPTY_DICT + put + pickle.STOP)
