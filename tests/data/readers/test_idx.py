"""MNIST and Fashion-MNIST in the published layout, intact and damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dualcba.data import load_dataset
from dualcba.data.readers.idx import read_idx

COUNTS = {"train": 40, "t10k": 20}


def idx(array: NDArray[np.uint8]) -> bytes:
    """An array as an idx file."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def part(name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(COUNTS[name])
    x = rng.integers(0, 256, (COUNTS[name], 28, 28), np.uint8)
    return x, (np.arange(COUNTS[name]) % 10).astype(np.uint8)


def write(folder: Path, *, packed: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name in COUNTS:
        for what, array in zip(("images-idx3", "labels-idx1"), part(name), strict=True):
            content = idx(array)
            path = folder / f"{name}-{what}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder", "flip", "mean", "std"),
    [
        ("mnist", "mnist", False, 0.1307, 0.3081),
        ("mnist", "MNIST/raw", False, 0.1307, 0.3081),
        ("fashion-mnist", "fashion-mnist", True, 0.2860, 0.3530),
        ("fashion-mnist", "FashionMNIST/raw", True, 0.2860, 0.3530),
    ],
)
def test_reads_the_published_layout(
    tmp_path: Path, name: str, folder: str, flip: bool, mean: float, std: float, packed: bool
) -> None:
    write(tmp_path / folder, packed=packed)
    data = load_dataset(name, tmp_path)
    x, y = part("train")
    np.testing.assert_array_equal(data.train_x.numpy()[:, 0], x)
    np.testing.assert_array_equal(data.train_y.numpy(), y)
    np.testing.assert_array_equal(data.test_x.numpy()[:, 0], part("t10k")[0])
    assert data.input_shape == (1, 28, 28)
    assert (data.name, data.num_classes, data.pad, data.flip) == (name, 10, 2, flip)
    assert ([*data.mean], [*data.std]) == ([mean], [std])


def test_what_is_read_can_be_written_to(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write(tmp_path / "mnist")
    load_dataset("mnist", tmp_path).train_x[0] = 0
    assert not recwarn.list


@pytest.mark.parametrize("missing", ["train-images-idx3", "t10k-labels-idx1"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path / "mnist") / f"{missing}-ubyte.gz"
    path.unlink()
    with pytest.raises(FileNotFoundError, match="dualcba data fetch mnist") as caught:
        load_dataset("mnist", tmp_path)
    assert str(path) in str(caught.value)


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mnist") / "train-images-idx3-ubyte.gz"
    for content in (path.read_bytes()[:200], b"", b"not gzip"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train-images-idx3-ubyte"):
            load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "expected an idx file"),
        (b"\0\0", "expected an idx file"),
        (b"\0\0\x08\x03\0\0\0\x01", "expected an idx file"),
        (b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"1234", "expected an idx file"),
        (b"\x1f\x8b\x08\x03" + b"\0" * 40, "expected an idx file"),
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], r"expected the shape \(2, 28, 28\)"),
        (idx(np.zeros((2, 28, 28), np.uint8)) + b"1", r"expected the shape \(2, 28, 28\)"),
        (b"\0\0\x08\x04" + struct.pack(">4I", *[2**31] * 4), "holds 0 bytes, expected the shape"),
    ],
)
def test_not_an_idx_file(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=line) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("what", "array", "line"),
    [
        ("images-idx3", np.zeros((40, 27, 28), np.uint8), r"\(40, 27, 28\), expected \(n, 28, 28"),
        ("images-idx3", np.zeros((40, 784), np.uint8), r"\(40, 784\), expected \(n, 28, 28"),
        ("labels-idx1", np.zeros(39, np.uint8), r"\(39,\), expected \(40,\)"),
        ("labels-idx1", np.zeros((40, 1), np.uint8), r"\(40, 1\), expected \(40,\)"),
        ("labels-idx1", np.full(40, 10, np.uint8), "label 10, expected labels from 0 to 9"),
    ],
)
def test_a_wrong_shape_or_label_is_named(
    tmp_path: Path, what: str, array: NDArray[np.uint8], line: str
) -> None:
    path = write(tmp_path / "mnist", packed=False) / f"train-{what}-ubyte"
    path.write_bytes(idx(array))
    with pytest.raises(ValueError, match=line) as caught:
        load_dataset("mnist", tmp_path)
    assert str(path) in str(caught.value)
