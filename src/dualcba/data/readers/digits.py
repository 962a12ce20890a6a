"""The handwritten digits of scikit-learn: 8×8 grey images that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays

TEST_EVERY = 5


def digits(root: Path | None = None) -> Dataset:
    """Load 1,797 digits in ten classes; every fifth image of each class is a test image.

    `root` is not used: scikit-learn contains the images.

    >>> data = digits()
    >>> len(data.train_x), len(data.test_x), data.input_shape
    (1442, 355, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    y = raw.target.astype(np.int64)
    index_in_class = np.zeros(len(y), dtype=np.int64)
    for c in range(10):
        index_in_class[y == c] = np.arange(np.sum(y == c))
    test = index_in_class % TEST_EVERY == TEST_EVERY - 1
    return from_arrays(x[~test], y[~test], x[test], y[test], num_classes=10, pad=1, name="digits")
