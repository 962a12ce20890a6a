"""Pickles of arrays: what is read, and that no pickle reaches NumPy's own unpickling."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualcba.data.readers.array_pickle import load_arrays


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_arrays_of_bytes_and_integers(protocol: int, dtype: Any) -> None:
    arrays = {b"a": np.arange(6, dtype=dtype).reshape(2, 3), b"b": np.empty((0, 4), dtype)}
    found = load_arrays(pickle.dumps(arrays | {b"labels": [1, 2]}, protocol=protocol))
    for name, array in arrays.items():
        assert found[name].dtype == dtype
        assert np.array_equal(found[name], array)
        found[name][:] = 0  # can be written to
    assert found[b"labels"] == [1, 2]


class Reduced:
    """Pickles as a call of whatever it is given, with a state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def with_dtype_state(state: tuple[Any, ...], data: bytes) -> bytes:
    """A pickled array whose dtype has this state, as a hostile file would have it."""
    dtype = Reduced(np.dtype, ("V16", False, True), state)
    array = Reduced(
        np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (1,), dtype, False, data)
    )
    return pickle.dumps({b"data": array}, protocol=2)


OBJECT_FIELD = (3, "|", None, ("o",), {"o": (np.dtype("O"), 0)}, 16, 1, 0)


@pytest.mark.parametrize(
    "content",
    [
        with_dtype_state(OBJECT_FIELD, b"\x41" * 16),
        pickle.dumps(np.array([object()]), protocol=2),
        pickle.dumps(np.array([1.5]), protocol=2),
        pickle.dumps(np.array(["a"]), protocol=2),
        pickle.dumps(np.zeros(2, np.dtype([("a", "u1")])), protocol=2),
        pickle.dumps(np.asfortranarray(np.zeros((2, 3), np.uint8)), protocol=2),
        pickle.dumps(np.float64(2), protocol=2),
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c_codecs\nencode\n}S'x'\nI1\nsb.",
        b"cnumpy\ndtype\n}S'x'\nI1\nsb.",
        b"cnumpy\ndtype\n(S'O8'\ntR.",
        b"cnumpy\ndtype\n(S'u1'\ntR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntb.",
        b"cnumpy._core.multiarray\n_reconstruct\n(I0\n(I0\ntS'b'\ntR.",
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, TypeError, ValueError, AttributeError)):
        load_arrays(content)


def test_a_dtype_with_an_object_field_does_not_crash_the_interpreter(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(with_dtype_state(OBJECT_FIELD, b"\x41" * 16))
    done = subprocess.run(
        [sys.executable, "-m", "dualcba", "data", "check", "cifar10", "--data-dir", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert "cannot be read as a CIFAR file" in done.stderr


def test_a_shape_that_does_not_fit_the_bytes() -> None:
    good = pickle.dumps({b"x": np.zeros((2, 3), np.uint8)}, protocol=2)
    old = b"K\x02K\x03\x86"
    for new in (b"K\x02K\x04\x86", b"K\x02J\xff\xff\xff\xff\x86"):
        assert old in good
        with pytest.raises(pickle.UnpicklingError):
            load_arrays(good.replace(old, new))
