"""Validation split: training samples that are held out and used instead of the test data."""

from __future__ import annotations

from dataclasses import replace

import torch

from dualcba.data.dataset import Dataset
from dualcba.data.readers.holdout import hold_out
from dualcba.errors import expected

SEED = 0
"""The seed of the split; all runs share it, whatever their own seeds."""


def validation_split(data: Dataset, fraction: float) -> Dataset:
    """Return a dataset in which a fraction of each class's training samples is the test data.

    The other samples are the training data, in memory; the test data are not used. The split is
    determined by the data and the fraction. With a fraction of 0, the dataset is returned.

    >>> from dualcba.data.readers.digits import digits
    >>> whole = digits()
    >>> split = validation_split(whole, 0.1)
    >>> len(whole.train_x), len(split.train_x), len(split.test_x)
    (1442, 1299, 143)
    """
    if data.validation == fraction:
        return data
    if data.validation:
        wanted = f"{data.validation}: the dataset {data.name} is already a split"
        raise ValueError(expected("validation", fraction, wanted))
    train, held_out = map(torch.from_numpy, hold_out(data.train_y.numpy(), fraction, SEED))
    return replace(
        data,
        train_x=data.train_x[train],
        train_y=data.train_y[train],
        test_x=data.train_x[held_out],
        test_y=data.train_y[held_out],
        memory_mapped=False,
        validation=fraction,
        whole=data,
    )
