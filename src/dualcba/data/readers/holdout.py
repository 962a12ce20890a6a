"""Split a dataset without a test set into a training and a test part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualcba.data.dataset import IntArray
from dualcba.errors import expected
from dualcba.randomness import generator


def hold_out(
    labels: IntArray, fraction: float, seed: int, class_names: Sequence[object] | None = None
) -> tuple[IntArray, IntArray]:
    """Return the indices of the training samples and of the test samples.

    The fraction of each class becomes the test part; each class keeps at least one sample in both
    parts. `class_names` are used in error messages.

    >>> train, test = hold_out(np.repeat([0, 1], [10, 5]), 0.2, seed=0)
    >>> len(train), len(test), int(sum(test < 10))
    (12, 3, 2)
    """
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise ValueError(expected("holdout", fraction, "a fraction between 0 and 1"))
    if not len(labels):
        raise ValueError("number of samples is 0, expected at least 2 per class")
    if labels.min() < 0:
        wanted = "a label of at least 0"
        raise ValueError(expected(f"y[{labels.argmin()}]", int(labels.min()), wanted))
    test: list[IntArray] = []
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            name = repr(class_names[label]) if class_names else label
            raise ValueError(f"class {name} has one sample, expected at least two, or a test set")
        count = min(max(round(len(rows) * fraction), 1), len(rows) - 1)
        test.append(generator(seed, "holdout", label).permutation(rows)[:count])
    test_rows = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test_rows), test_rows
