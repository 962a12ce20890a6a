"""Datasets from arrays and tensors; invalid arrays."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import from_arrays, load_dataset
from dualcba.data import DATASETS, Dataset, check_labels, check_samples

X = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4)).astype(np.uint8)
Y = [0, 1, 2] * 2


def test_images_stay_raw_and_are_normalised_by_their_channels() -> None:
    data = from_arrays(X, Y, X[:3], Y[:3], pad=2, flip=True, name="mine")
    assert data.train_x.dtype == torch.uint8
    assert np.array_equal(data.train_x.numpy(), X)
    assert (data.input_shape, data.num_classes, data.name) == ((3, 4, 4), 3, "mine")
    assert data.mean == pytest.approx(X.mean((0, 2, 3)) / 255)
    assert data.std == pytest.approx(X.std((0, 2, 3), ddof=1) / 255)
    t = data.transform()
    assert (t.pad, t.flip) == (2, True)
    z = t(data.train_x)
    assert z.mean((0, 2, 3)).numpy() == pytest.approx(np.zeros(3), abs=1e-5)
    assert z.std((0, 2, 3)).numpy() == pytest.approx(np.ones(3), abs=1e-2)


def test_vectors_are_normalised_by_one_number() -> None:
    x = np.random.default_rng(0).normal(5, 3, (50, 4))
    data = from_arrays(x, [0, 1] * 25, x, [0, 1] * 25)
    assert data.train_x.dtype == torch.float32
    assert (len(data.mean), data.mean[0]) == (1, pytest.approx(x.mean(), abs=1e-5))
    assert float(data.transform()(data.train_x).std()) == pytest.approx(1, abs=1e-4)


def test_constant_data_are_no_division_by_zero() -> None:
    x = np.full((4, 3), 7.0)
    data = from_arrays(x, [0, 1, 0, 1], x, [0, 1, 0, 1])
    assert bool(data.transform()(data.train_x).isfinite().all())


def test_given_statistics_are_kept() -> None:
    data = from_arrays(X, Y, X, Y, mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0])
    assert (list(data.mean), list(data.std)) == ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray, lambda v: np.asarray(v).tolist()])
def test_tensors_arrays_and_lists(kind: Any) -> None:
    x = np.arange(12.0).reshape(6, 2)
    data = from_arrays(kind(x), kind(np.array(Y)), kind(x), kind(np.array(Y)))
    assert torch.equal(data.train_x, torch.from_numpy(x).float())
    assert data.train_y.dtype == torch.long
    assert data.train_y.tolist() == Y


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_labels_of_a_series_whatever_its_index(dtype: type) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(Y, index=range(100, 106), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_labels(series, 6, 3, "train").tolist() == Y


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.int64, np.uint16])
def test_labels_of_any_whole_type(dtype: type) -> None:
    assert check_labels(np.array(Y, dtype=dtype), 6, 3, "train").tolist() == Y


def test_digits() -> None:
    data = load_dataset("digits")
    assert (data.train_x.dtype, data.input_shape, data.num_classes) == (torch.uint8, (1, 8, 8), 10)
    assert len(data.train_x) + len(data.test_x) == 1797
    assert int(data.train_x.max()) == 255
    assert len(set(data.test_y.tolist())) == 10
    test, train = torch.bincount(data.test_y), torch.bincount(data.train_y)
    assert torch.equal(test, (test + train) // 5)
    again = load_dataset("digits")
    assert torch.equal(again.train_x, data.train_x)


def test_no_digit_is_in_both_parts() -> None:
    data = load_dataset("digits")
    train = {x.numpy().tobytes() for x in data.train_x}
    assert not any(x.numpy().tobytes() in train for x in data.test_x)


# ---------------------------------------------------------------- bad input


def spoilt(value: float) -> np.ndarray:
    x = X.astype(np.float64)
    x[4, 0, 1, 1] = value
    return x


F = X.astype(np.float32)
BAD: list[tuple[str, tuple[Any, Any, Any, Any], dict[str, Any], list[str]]] = [
    ("label too large", (X, [0, 1, 2, 0, 3, 9], X, Y), {"num_classes": 3},
     ["train y[4]", "3", "0 to 2"]),
    ("negative label", (X, [0, 1, -2, 0, 1, 2], X, Y), {}, ["train y[2]", "-2", "at least 0"]),
    ("test label unknown", (X, Y, X, [0, 1, 2, 3, 0, 0]), {}, ["test y[3]", "3", "0 to 2"]),
    ("float labels", (X, [0.0, 1, 2, 0, 1, 2], X, Y), {}, ["train y", "float", "whole numbers"]),
    ("complex labels", (X, np.array(Y, dtype=complex), X, Y), {}, ["train y", "complex", "whole"]),
    ("bool labels", (X, [True, False] * 3, X, Y), {}, ["train y", "bool", "whole numbers"]),
    ("fewer labels", (X, Y[:5], X, Y), {}, ["train y", "(5,)", "(6,)"]),
    ("more test labels", (X, Y, X, [*Y, 0]), {}, ["test y", "(7,)", "(6,)"]),
    ("labels as a column", (X, np.array(Y)[:, None], X, Y), {}, ["train y", "(6, 1)", "(6,)"]),
    ("one label", (X, 3, X, Y), {}, ["train y", "()", "(6,)"]),
    ("empty", (X[:0], [], X, Y), {}, ["train x", "(0, 3, 4, 4)", "at least 1"]),
    ("empty test", (X, Y, X[:0], []), {}, ["test x", "(0, 3, 4, 4)", "at least 1"]),
    ("empty lists", ([], [], [], []), {}, ["train x", "(0,)"]),
    ("no pixels", (X[:, :, :0], Y, X, Y), {}, ["train x", "(6, 3, 0, 4)"]),
    ("NaN", (spoilt(np.nan), Y, F, Y), {}, ["train x[4]", "NaN", "finite"]),
    ("infinite", (F, Y, spoilt(np.inf), Y), {}, ["test x[4]", "infinite", "finite"]),
    ("minus infinite", (spoilt(-np.inf), Y, F, Y), {}, ["train x[4]", "infinite", "finite"]),
    ("channels", (X, Y, X[:, :1], Y), {}, ["test x", "(1, 4, 4)", "(3, 4, 4)"]),
    ("image size", (X, Y, X[..., :3], Y), {}, ["test x", "(3, 4, 3)", "(3, 4, 4)"]),
    ("test dtype", (X, Y, F, Y), {}, ["test x", "float32", "uint8"]),
    ("numbers in a row", ([1.0, 2.0], [0, 1], [1.0], [0]), {}, ["train x", "(2,)"]),
    ("strings", (np.full((6, 2), "a"), Y, X, Y), {}, ["train x", "<U1", "numbers"]),
    ("objects", (np.full((6, 2), None), Y, X, Y), {}, ["train x", "object", "numbers"]),
    ("complex", (np.ones((6, 2), dtype=complex), Y, X, Y), {}, ["train x", "complex", "numbers"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arrays", "options", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_arrays_are_named(
    arrays: tuple[Any, Any, Any, Any], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        from_arrays(*arrays, **options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_samples_of_another_shape_than_asked_for() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 4\), expected \(1, 4, 4\)"):
        check_samples(X, "given", (1, 4, 4))


def test_unknown_datasets_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown dataset 'cifar-100', did you mean 'cifar100'"):
        load_dataset("cifar-100")
    assert {"digits", "cifar10", "cifar100"} <= set(DATASETS)


def toy(**changed: Any) -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, 1, 4, 4), np.uint8), np.arange(20) % 4
    given = {"train_x": x, "train_y": y, "test_x": x[:8], "test_y": y[:8]} | changed
    return from_arrays(**given)


def test_the_digest_depends_on_every_byte_shape_and_type() -> None:
    data = toy()
    x, y = data.train_x.numpy(), data.train_y.numpy()
    flipped, swapped = x.copy(), y.copy()
    flipped[-1, 0, -1, -1] ^= 1
    swapped[[0, 1]] = swapped[[1, 0]]
    others = [
        toy(train_x=flipped), toy(train_y=swapped), toy(test_x=flipped[-8:]),
        toy(test_y=swapped[:8]), toy(num_classes=5), toy(train_x=x[:12], train_y=y[:12]),
        toy(train_x=x.reshape(20, 1, 2, 8), test_x=x[:8].reshape(8, 1, 2, 8)),
        toy(train_x=x.astype(np.float32), test_x=x[:8].astype(np.float32)),
    ]  # fmt: skip
    assert len({data.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_the_digest_does_not_depend_on_name_layout_or_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = toy()
    x = torch.from_numpy(data.train_x.numpy())
    apart = torch.stack([x, x], -1)[..., 0]
    assert not apart.is_contiguous()
    assert toy(name="other", pad=1, train_x=apart).digest == data.digest
    monkeypatch.setattr(sys.modules["dualcba.data.dataset"], "DIGEST_BLOCK", 40)
    assert toy().digest == data.digest


def test_the_digest_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy()
    first = data.digest
    monkeypatch.setattr(sys.modules["dualcba.data.dataset"], "_blocks", None)
    assert data.digest == first
