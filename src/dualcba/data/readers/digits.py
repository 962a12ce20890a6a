"""scikit-learn's handwritten digits: 8×8 grey images that come with the package."""

from __future__ import annotations

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays

TEST_EVERY = 5


def digits() -> Dataset:
    """1,797 digits in ten classes; of each class, every fifth image is for testing.

    >>> data = digits()
    >>> len(data.train_x), len(data.test_x), data.input_shape
    (1442, 355, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    y = raw.target.astype(np.int64)
    rank = np.zeros(len(y), dtype=np.int64)  # the how-maniest of its class each image is
    for c in range(10):
        rank[y == c] = np.arange(np.sum(y == c))
    test = rank % TEST_EVERY == TEST_EVERY - 1
    return from_arrays(x[~test], y[~test], x[test], y[test], num_classes=10, pad=1, name="digits")
