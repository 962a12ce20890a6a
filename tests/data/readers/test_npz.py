"""Arrays from `.npz` files."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from dualcba.data import from_npz, load_dataset
from dualcba.data.readers.holdout import hold_out
from dualcba.data.readers.npz import channels_first

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (30, 3, 6, 5), np.uint8)
Y = np.arange(30) % 3


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.npz"


@pytest.mark.parametrize(
    "names", ["train_x train_y test_x test_y", "x_train y_train x_test y_test"]
)
@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_with_a_test_set(path: Path, names: str, writer: Any) -> None:
    writer(path, **dict(zip(names.split(), (X, Y, X[:6], Y[:6]), strict=True)), other=[1])
    data = load_dataset(path)
    np.testing.assert_array_equal(data.train_x, X)
    np.testing.assert_array_equal(data.test_y, Y[:6])
    assert (data.name, data.num_classes, data.pad, data.flip) == ("own", 3, 0, False)
    assert data.train_x.dtype == torch.uint8
    assert len(data.mean) == 3


@pytest.mark.parametrize("names", ["x y", "train_x train_y"])
def test_without_one_a_part_is_held_out(path: Path, names: str) -> None:
    save(path, **dict(zip(names.split(), (X, Y), strict=True)))
    data = load_dataset(path, holdout=0.3)
    assert torch.bincount(data.train_y).tolist() == [7, 7, 7]
    assert torch.bincount(data.test_y).tolist() == [3, 3, 3]
    both = np.concatenate([data.train_x, data.test_x])
    assert sorted(a.tobytes() for a in both) == sorted(a.tobytes() for a in X)
    again, other = from_npz(path, holdout=0.3), from_npz(path, holdout=0.3, seed=1)
    assert torch.equal(again.test_x, data.test_x)
    assert not torch.equal(other.test_x, data.test_x)


def test_options_reach_the_dataset(path: Path) -> None:
    save(path, x=X, y=Y)
    data = load_dataset(path, mean=[0.5] * 3, std=[0.1] * 3, pad=1, flip=True, name="mine")
    assert (data.mean, data.std, data.pad, data.flip) == ([0.5] * 3, [0.1] * 3, 1, True)
    assert data.name == "mine"


def test_a_class_only_in_the_test_set_counts(path: Path) -> None:
    save(path, train_x=X, train_y=Y, test_x=X[:2], test_y=[0, 3])
    assert load_dataset(path).num_classes == 4


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (10 * Y, ("0", "10", "20")),
        (Y + 10**9, ("1000000000", "1000000001", "1000000002")),
        (np.array(["dog", "ant", "cat"])[Y], ("ant", "cat", "dog")),
        (np.array([b"dog", b"ant", b"cat"])[Y], ("ant", "cat", "dog")),
    ],
)
@pytest.mark.parametrize("test_set", [False, True])
def test_classes_are_the_labels_that_occur(
    path: Path, labels: Any, names: tuple[str, ...], test_set: bool
) -> None:
    test = {"test_x": X, "test_y": labels} if test_set else {}
    save(path, **{"train_x": X, "train_y": labels, **test})
    data = load_dataset(path)
    assert (data.num_classes, data.class_names) == (3, names)
    wanted = [names[k] for k in data.train_y.tolist()]
    given = dict(
        zip(map(bytes, X.reshape(len(X), -1)), np.asarray(labels).astype(str), strict=True)
    )
    assert wanted == [given[bytes(x.flatten().numpy())] for x in data.train_x]


def test_vectors(path: Path) -> None:
    save(path, x=RNG.normal(size=(30, 7)), y=Y.astype(np.uint8))
    data = load_dataset(path)
    assert data.input_shape == (7,)
    assert data.train_x.dtype == torch.float32


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((4, 6, 5, 3), np.uint8, (4, 3, 6, 5)),
        ((4, 6, 5, 1), np.float32, (4, 1, 6, 5)),
        ((4, 3, 6, 5), np.uint8, (4, 3, 6, 5)),
        ((4, 3, 6, 3), np.uint8, (4, 3, 6, 3)),
        ((4, 1, 28, 1), np.uint8, (4, 1, 28, 1)),
        ((4, 6, 5, 4), np.uint8, (4, 6, 5, 4)),
        ((4, 6, 5), np.uint8, (4, 1, 6, 5)),
        ((4, 6, 5), np.float32, (4, 6, 5)),
        ((4, 6), np.float64, (4, 6)),
    ],
)
def test_channels_first(shape: tuple[int, ...], dtype: Any, wanted: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    out = channels_first(x)
    assert out.shape == wanted
    assert out.dtype == dtype
    assert out.flags.c_contiguous
    if len(shape) == 4 and wanted != shape:
        np.testing.assert_array_equal(out[2, :, 4, 1], x[2, 4, 1])


def test_the_bytes_may_be_in_the_other_order(path: Path) -> None:
    save(path, x=np.arange(60, dtype=">f4").reshape(30, 2), y=Y.astype(">i8"))
    data = load_dataset(path, holdout=0.3)
    assert float(data.train_x.max()) <= 59.0
    assert data.num_classes == 3


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_pickle_that_carries_code_is_refused(path: Path, name: str) -> None:
    trap = path.with_name("trap")
    arrays: dict[str, Any] = {"x": X, "y": Y}
    arrays[name] = np.array([Evil(trap)] * 30, object)
    save(path, **arrays)
    with pytest.raises(ValueError, match=f"own.npz: {name} is not an array of numbers, expected"):
        load_dataset(path)
    assert not trap.exists()


def test_a_member_that_is_no_array_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("x", b"not an array")
        out.writestr("y", b"")
    with pytest.raises(ValueError, match=r"own\.npz: x is not an array of numbers"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"x": X}, "holds x, expected train_x"),
        ({}, "holds no arrays, expected train_x"),
        ({"x": X, "y": Y[:-1]}, "expected one label per sample"),
        ({"x": X, "y": Y[:, None]}, "expected one label per sample"),
        ({"x": X, "y": Y / 2}, "labels are float64, expected whole numbers"),
        ({"x": Y.astype(str)[:, None], "y": Y}, "dtype of train x is '<U21', expected numbers"),
        ({"train_x": X, "train_y": Y, "test_x": X, "test_y": Y.astype(str)}, "expected whole numb"),
        ({"x": np.float32(3), "y": Y}, "x is not an array of numbers"),
        ({"x": X, "y": Y - 1}, "expected a label"),
        ({"x": X[:4], "y": [0, 0, 0, 1]}, "class 1 has one sample, expected at least two"),
        ({"x": X[:0], "y": Y[:0]}, "number of samples is 0, expected at least 2 per class"),
        ({"train_x": X, "train_y": Y, "test_x": X[:, :1], "test_y": Y}, "sample of test x"),
        ({"x": np.full((30, 2), np.nan), "y": Y}, "NaN"),
    ],
)
def test_what_is_wrong_is_named(path: Path, arrays: dict[str, Any], line: str) -> None:
    save(path, **arrays)
    with pytest.raises(ValueError, match=line) as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("holdout", [0, 1, -0.1, 1.5, True, float("nan")])
def test_an_impossible_fraction(path: Path, holdout: float) -> None:
    save(path, x=X, y=Y)
    with pytest.raises(ValueError, match=r"holdout is .* expected a fraction between 0 and 1"):
        load_dataset(path, holdout=holdout)


def test_not_an_npz(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"own\.npz is missing"):
        load_dataset(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"own\.npz is not an \.npz file"):
        load_dataset(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(ValueError, match=r"own\.npz is not an \.npz file"):
        load_dataset(path)


def test_a_damaged_npz(path: Path) -> None:
    np.savez_compressed(path, x=X, y=Y)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:200] + bytes(200) + whole[400:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"own\.npz") as caught:
            load_dataset(path)
        assert "\n" not in str(caught.value)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda y: [*y, *set(y)]),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_hold_out_is_a_stratified_partition(labels: list[int], fraction: float, seed: int) -> None:
    y: NDArray[np.int64] = np.array(labels)
    train, test = hold_out(y, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(y)))
    for label in set(labels):
        count, held = labels.count(label), int(np.sum(y[test] == label))
        assert 1 <= held < count
        assert abs(held - count * fraction) <= 1
    np.testing.assert_array_equal(test, hold_out(y, fraction, seed)[1])
