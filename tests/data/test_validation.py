"""The validation split: a part of each class, the same for all runs, never the test data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualcba import Dataset
from dualcba.data import validation_split
from dualcba.randomness import generator


def rows(x: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


def test_the_parts_are_disjoint_and_together_the_training_data(images: Dataset) -> None:
    split = validation_split(images, 0.25)
    assert rows(split.train_x) | rows(split.test_x) == rows(images.train_x)
    assert not rows(split.train_x) & rows(split.test_x)
    assert not rows(split.test_x) & rows(images.test_x)


def test_each_class_has_its_share(images: Dataset) -> None:
    split = validation_split(images, 0.25)
    assert np.bincount(split.test_y).tolist() == [6] * 6
    assert np.bincount(split.train_y).tolist() == [18] * 6


def test_the_split_is_always_the_same_one(images: Dataset) -> None:
    one, two = validation_split(images, 0.25), validation_split(images, 0.25)
    assert torch.equal(one.test_x, two.test_x)
    assert torch.equal(one.train_y, two.train_y)
    found = []  # of each class by a generator of its own; so it is in results of earlier versions
    for c in range(6):
        own = np.flatnonzero(images.train_y.numpy() == c)
        found += generator(0, "holdout", c).permutation(own)[:6].tolist()
    assert torch.equal(one.test_x, images.train_x[sorted(found)])


def test_the_rest_of_the_dataset_stays(images: Dataset) -> None:
    split = validation_split(images, 0.25)
    assert (split.mean, split.std, split.pad, split.flip) == (
        images.mean, images.std, images.pad, images.flip,
    )  # fmt: skip
    assert split.origin == images.origin  # its digest is that of the whole dataset
    assert split.digest != images.digest
    assert validation_split(images, 0.0) is images
    assert validation_split(split, 0.25) is split


@pytest.mark.parametrize("fraction", [0.0, 0.1])
def test_a_split_is_not_split_again(fraction: float, images: Dataset) -> None:
    with pytest.raises(ValueError, match=r"expected 0.25: the dataset images is already a split"):
        validation_split(validation_split(images, 0.25), fraction)
