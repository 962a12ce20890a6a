"""Arrangements of a stream's training samples: i-Blurry, Gaussian-scheduled and long-tailed.

Each function takes the disjoint tasks of a stream, and returns tasks with the same classes and test
samples, but with another arrangement of the training samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dualcba.data.dataset import IntArray
from dualcba.data.stream import Task, blurry
from dualcba.errors import expected


def i_blurry(
    stream: Sequence[Task],
    labels: IntArray,
    disjoint: float,
    blur: float,
    rng: np.random.Generator,
) -> list[Task]:
    """Move samples of a part of the classes to other tasks (Koh et al., ICLR 2022).

    Of the C classes, `disjoint` percent (rounded) keep all their samples in their own task. They
    are chosen at random, as evenly as possible over the tasks. The other classes are blurry: in
    each task, `blur` percent of their samples move to the other tasks, as in `blurry`.

    Parameters
    ----------
    stream, labels
        The tasks, and the labels of all training samples of the dataset.
    disjoint
        Percentage of disjoint classes, from 0 to below 100.
    blur
        Percentage of samples that are moved, between 0 and 100.
    rng
        Chooses classes and samples.
    """
    if not 0 <= disjoint < 100:
        wanted = "from 0 to below 100"
        raise ValueError(expected("percent of disjoint classes", disjoint, wanted))
    kept = _disjoint_classes(stream, disjoint, rng)
    fixed = [np.isin(labels[task.train], kept) for task in stream]
    parts = [replace(t, train=t.train[~own]) for t, own in zip(stream, fixed, strict=True)]
    mixed = blurry(parts, blur, rng)
    return [
        replace(task, train=np.concatenate([task.train[own], part.train]))
        for task, own, part in zip(stream, fixed, mixed, strict=True)
    ]


def _disjoint_classes(stream: Sequence[Task], percent: float, rng: np.random.Generator) -> IntArray:
    """Choose a percentage of the classes, from every task in proportion to its size."""
    classes = np.array([c for task in stream for c in task.classes])
    ranks = [(rng.permutation(len(t.classes)) + rng.random()) / len(t.classes) for t in stream]
    number = round(len(classes) * percent / 100)
    if number == len(classes):
        wanted = f"fewer, so that at least one of {len(classes)} classes is blurry"
        raise ValueError(expected("percent of disjoint classes", percent, wanted))
    chosen: IntArray = classes[np.argsort(np.concatenate(ranks), kind="stable")[:number]]
    return chosen


def gaussian(
    stream: Sequence[Task], labels: IntArray, width: float, rng: np.random.Generator
) -> list[Task]:
    """Let the samples of each class arrive around their own peak in time (Shanahan et al., 2021).

    Time is the position in the stream, from 0 to 1. If the classes arrived one after another in
    task order, the peak of a class would be the middle of its interval. Each sample arrives at a
    time drawn from a normal distribution around the peak of its class, and samples are sorted by
    time. The tasks are consecutive parts of the stream, each with as many samples as its own
    classes have. The order inside a task is kept.


    Parameters
    ----------
    stream, labels
        The tasks, and the labels of all training samples of the dataset.
    width
        The standard deviation, in units of the mean length of a task.
    rng
        Draws the times.
    """
    if not 0 < width < np.inf:
        raise ValueError(expected("width of a Gaussian stream", width, "a number above 0"))
    rows = np.concatenate([task.train for task in stream])
    times = rng.normal(peaks(stream, labels)[labels[rows]], width / len(stream))
    rows = rows[np.argsort(times, kind="stable")]
    parts = np.split(rows, np.cumsum([len(task.train) for task in stream])[:-1])
    return [replace(t, train=part, ordered=True) for t, part in zip(stream, parts, strict=True)]


def peaks(stream: Sequence[Task], labels: IntArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the time at which each class is most frequent; 0 for classes outside the stream.

    >>> task = Task((1, 0), np.arange(4), np.arange(1))
    >>> peaks([task], np.array([0, 1, 1, 1])).tolist()
    [0.875, 0.375]
    """
    counts = np.bincount(labels[np.concatenate([task.train for task in stream])])
    classes = [c for task in stream for c in task.classes if c < len(counts)]
    sizes = counts[classes]
    found = np.zeros(len(counts))
    found[classes] = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    return found


def long_tailed(
    stream: Sequence[Task], labels: IntArray, ratio: float, rng: np.random.Generator
) -> list[Task]:
    """Remove samples so that class sizes fall exponentially.

    Of C classes in a random order, class k (from 0) keeps n · ratio^(k / (C − 1)) samples, rounded
    and at least one, chosen at random. n is the size of the smallest class.

    Parameters
    ----------
    stream, labels
        The tasks, and the labels of all training samples of the dataset.
    ratio
        The size of the smallest class relative to the largest, above 0 and at most 1.
    rng
        Chooses the order of the classes and the samples.
    """
    if not 0 < ratio <= 1:
        raise ValueError(expected("ratio of a long tail", ratio, "above 0 and at most 1"))
    classes = rng.permutation([c for task in stream for c in task.classes])
    rows = np.sort(np.concatenate([task.train for task in stream]))
    own = [rows[labels[rows] == c] for c in classes]
    sizes = tail_sizes(min(map(len, own)), len(classes), ratio)
    kept = np.concatenate([rng.permutation(r)[:n] for r, n in zip(own, sizes, strict=True)])
    return [replace(task, train=task.train[np.isin(task.train, kept)]) for task in stream]


def tail_sizes(largest: int, classes: int, ratio: float) -> list[int]:
    """Return the sizes of the classes of a long tail, largest first.

    >>> tail_sizes(500, 5, 0.01)
    [500, 158, 50, 16, 5]
    """
    last = max(classes - 1, 1)
    return [max(1, round(largest * ratio ** (k / last))) for k in range(classes)]
