"""Labels of any hashable type, and the classes that they stand for, in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualcba.errors import expected, reason

SAVED = "a str, an int, a finite float, a bool, None or a tuple of these"
"""The labels that can be part of a state."""


class Labels:
    """The labels so far; the k-th one that arrived is class k.

    Labels are compared as the keys of a dict: 1, 1.0 and True are one class.

    Parameters
    ----------
    limit
        The largest number of classes; None for no limit.
    source
        What sets the limit, for error messages.

    >>> labels = Labels(None)
    >>> labels.classes(["cat", 7, "cat"])
    ([-1, -1, -1], ['cat', 7])
    >>> labels.add(["cat", 7])
    >>> labels.classes([7, "cat"])
    ([1, 0], [])
    """

    def __init__(self, limit: int | None, source: str = "max_classes") -> None:
        self.limit = limit
        self.source = source
        self._classes: dict[Hashable, int] = {}
        self._array = as_array([])

    def __len__(self) -> int:
        return len(self._classes)

    @property
    def names(self) -> list[Any]:
        """The labels in the order of arrival."""
        return list(self._classes)

    @property
    def array(self) -> NDArray[Any]:
        """The labels as an array, of strings or numbers if all are."""
        return self._array

    def classes(self, labels: Sequence[Hashable], none: Any = ...) -> tuple[list[int], list[Any]]:
        """Return the class of each label, −1 if it has none yet, and the labels without one.

        `none` are the values that mean no label.
        """
        known = self._classes
        try:
            found = [known.get(label, -1) for label in labels]
        except TypeError:
            found = [-1]
        if -1 not in found:
            return found, []
        skipped = () if none is ... else none
        fresh: dict[Hashable, None] = {}
        for i, label in enumerate(labels):
            _check_label(label, i)
            if label not in known and label not in skipped:
                fresh[label] = None
        return found, list(fresh)

    def add(self, labels: Sequence[Hashable]) -> None:
        """Give new labels the next classes; raise if that is more than the limit."""
        count = len(self) + len(labels)
        if self.limit is not None and count > self.limit:
            label = labels[self.limit - len(self)]
            wanted = f"at most {self.source} {self.limit}: the label {label!r} is new"
            raise ValueError(expected("number of classes", count, wanted))
        self.replace([*self._classes, *labels])

    def replace(self, labels: Sequence[Hashable]) -> None:
        """Have these labels and no others."""
        self._classes = {label: k for k, label in enumerate(labels)}
        self._array = as_array(labels)

    def to_json(self) -> list[Any]:
        """Return the labels as JSON types; tuples become lists."""
        return [_encode(label) for label in self._classes]

    def from_json(self, value: object) -> list[Hashable]:
        """Return the labels of a state; raise unless they are labels and not too many."""
        name = "the state's meta 'classes'"
        if not isinstance(value, list):
            raise ValueError(expected(name, value, "a list of labels"))
        labels = [_decode(v) for v in value]
        if len(set(labels)) < len(labels):
            raise ValueError(expected(name, value, "labels that differ"))
        if self.limit is not None and len(labels) > self.limit:
            wanted = f"at most {self.source} {self.limit}"
            raise ValueError(expected(f"number of {name}", len(labels), wanted))
        return labels


def read_labels(y: Any, length: int | None, name: str) -> list[Any]:
    """Return labels as a list of Python objects; waits for the device if they are on a GPU.

    >>> read_labels(np.array(["a", "b"]), 2, "y")
    ['a', 'b']
    """
    if isinstance(y, list | tuple):
        labels = [v.item() if isinstance(v, np.generic | Tensor) else v for v in y]
        shape: tuple[int, ...] = (len(labels),)
    else:
        try:
            array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
            labels, shape = array.reshape(-1).tolist(), array.shape
        except Exception as error:  # an object may raise anything
            raise ValueError(f"{name} cannot be read as labels: {reason(error)}") from error
    if len(shape) != 1 or length not in (None, len(labels)):
        wanted = "(n,), one label each" if length is None else f"({length},)"
        raise ValueError(expected(f"shape of {name}", shape, wanted))
    return labels


def as_array(labels: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array of strings or numbers if all have one type, else of objects.

    >>> as_array(["a", "b"]).dtype.kind, as_array([1, "b"]).dtype.kind
    ('U', 'O')
    """
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], str | int | float):
        return np.array(labels)
    array = np.empty(len(labels), dtype=object)
    for k, label in enumerate(labels):
        array[k] = label
    return array


def _check_label(label: Any, i: int) -> None:
    try:
        hash(label)
        valid = bool(label == label)
    except Exception:  # an object may raise anything
        valid = False
    if not valid:
        raise ValueError(expected(f"label {i}", label, "a hashable value that equals itself"))


def _encode(label: Any) -> Any:
    if isinstance(label, tuple):
        return [_encode(part) for part in label]
    if label is None or isinstance(label, str | int):
        return label
    if isinstance(label, float) and math.isfinite(label):
        return label
    raise ValueError(expected("a label of the learner's state", label, SAVED))


def _decode(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(_decode(part) for part in value)
    _encode(value)  # raises unless it is a label that can be saved
    return value  # type: ignore[no-any-return]
