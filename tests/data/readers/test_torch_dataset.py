"""Any map-style torch dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from dualcba.data import disjoint, from_torch

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (12, 6, 5, 3), np.uint8)
GREY = COLOUR[..., 0]
LABELS = [k % 2 for k in range(12)]


def pairs(samples: Any, labels: Any = LABELS) -> list[tuple[Any, Any]]:
    return list(zip(samples, labels, strict=True))


def test_tensors_stay_as_they_are() -> None:
    x = torch.rand(12, 3, 6, 5)
    data = from_torch(
        TensorDataset(x, torch.tensor(LABELS)), TensorDataset(x[:4], torch.ones(4).int())
    )
    assert torch.equal(data.train_x, x)
    assert torch.equal(data.test_x, x[:4])
    assert data.train_y.tolist() == LABELS
    assert data.test_y.tolist() == [1] * 4
    assert data.num_classes == 2


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        (torch.from_numpy(COLOUR), COLOUR),
        (torch.zeros(12, 7, dtype=torch.float64), np.zeros((12, 7), np.float32)),
        (torch.ones(12, 7, dtype=torch.int64), np.ones((12, 7), np.float32)),
        (torch.ones(12, 7, requires_grad=True), np.ones((12, 7), np.float32)),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR / 255, (COLOUR / 255).astype(np.float32).transpose(0, 3, 1, 2)),
        (GREY, GREY[:, None]),
        (GREY.reshape(12, -1) / 255, (GREY.reshape(12, -1) / 255).astype(np.float32)),
        ([Image.fromarray(image) for image in COLOUR], COLOUR.transpose(0, 3, 1, 2)),
        ([Image.fromarray(image) for image in GREY], GREY[:, None]),
    ],
)
def test_samples(samples: Any, wanted: np.ndarray) -> None:
    data = from_torch(pairs(samples), pairs(samples))
    assert data.train_x.numpy().dtype == wanted.dtype
    np.testing.assert_array_equal(data.train_x, wanted)


@pytest.mark.parametrize(
    "labels",
    [LABELS, torch.tensor(LABELS), np.array(LABELS, np.uint8), torch.tensor(LABELS)[:, None]],
)
def test_labels(labels: Any) -> None:
    assert from_torch(pairs(COLOUR, labels), pairs(COLOUR)).train_y.tolist() == LABELS


def test_a_part_is_held_out() -> None:
    data = from_torch(pairs(COLOUR), holdout=1 / 3, seed=4)
    assert torch.bincount(data.train_y).tolist() == [4, 4]
    assert torch.bincount(data.test_y).tolist() == [2, 2]
    both = torch.cat([data.train_x, data.test_x]).numpy()
    assert sorted(a.tobytes() for a in both) == sorted(
        a.tobytes() for a in COLOUR.transpose(0, 3, 1, 2)
    )


def test_options_reach_the_dataset() -> None:
    data = from_torch(
        pairs(COLOUR), num_classes=4, mean=[0.5] * 3, std=[0.1] * 3, pad=2, flip=True, name="mine"
    )
    assert (data.num_classes, data.mean, data.std, data.pad, data.flip, data.name) == (
        4, [0.5] * 3, [0.1] * 3, 2, True, "mine",
    )  # fmt: skip


def test_a_subset_goes_through_a_stream() -> None:
    data = from_torch(Subset(TensorDataset(torch.rand(12, 4), torch.tensor(LABELS)), range(10)))
    assert [len(t.train) + len(t.test) for t in disjoint(data, 2)] == [5, 5]


def test_each_sample_is_read_once() -> None:
    asked: list[int] = []

    class Counting:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
            asked.append(i)
            return COLOUR[i], LABELS[i]

    from_torch(Counting())
    assert asked == list(range(12))


def test_progress(capfd: pytest.CaptureFixture[str]) -> None:
    from_torch(pairs(COLOUR), show=True)
    assert "read train" in capfd.readouterr().err
    from_torch(pairs(COLOUR), show=False)
    assert capfd.readouterr() == ("", "")


class Endless(IterableDataset[Any]):
    """Has a length but no index."""

    def __iter__(self) -> Iterator[Any]:
        return iter(pairs(COLOUR))

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (Endless(), "train dataset is 'Endless', expected one with a length and an index"),
        ([], "the train dataset is empty"),
        ([COLOUR[0]], "train sample 0 is a ndarray, expected a pair"),
        ([(COLOUR[0], 0, 1)], "train sample 0 is a tuple, expected a pair"),
        ([{"x": 1, "y": 2}], "train sample 0 is a dict, expected a pair"),
        ([("text", 0)], "type of train sample 0 is 'str', expected a tensor"),
        ([(np.array(["text"]), 0)], "type of train sample 0 is 'ndarray', expected a tensor"),
        ([(torch.tensor(1.0), 0)], "type of train sample 0 is 'Tensor', expected a tensor"),
        ([(COLOUR[0], 0.5)], "label of train sample 0 is 0.5, expected a whole number"),
        ([(COLOUR[0], True)], "label of train sample 0 is True, expected a whole number"),
        ([(COLOUR[0], torch.tensor(1.0))], "label of train sample 0 is tensor"),
        ([(COLOUR[0], "cat")], "label of train sample 0 is 'cat', expected a whole number"),
        ([(COLOUR[0], 0), (COLOUR[1, :4], 0)], r"train sample 1 has the shape \(3, 4, 5\)"),
        ([(COLOUR[0], 0), (COLOUR[1] / 255, 0)], "train sample 1 has .* of torch.float32"),
        (pairs(COLOUR, [-1] * 12), "expected a label"),
    ],
)
def test_what_is_wrong_is_named(dataset: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        from_torch(dataset)
    assert "\n" not in str(caught.value)
