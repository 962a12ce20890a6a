"""Labels of any hashable type, and their classes, which are numbered in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualcba.errors import expected, reason

SAVED = "a str, an int, a finite float, a bool, None, a NumPy date or a tuple of these"
"""The labels that a state can store."""

DATES = (np.datetime64, np.timedelta64)


class Labels:
    """The labels so far; the k-th one that arrived is class k.

    Labels are compared as the keys of a dict: 1, 1.0 and True are one class.

    Parameters
    ----------
    limit
        The largest number of classes; None for no limit.
    source
        The name of the limit in error messages.

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
        """The labels as an array, of strings or numbers if all labels are."""
        return self._array

    def classes(self, labels: Sequence[Hashable], none: Any = ...) -> tuple[list[int], list[Any]]:
        """Return the class of each label, −1 if it has none yet, and the new labels.

        `none` are the values that mean no label; they are not new labels.
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
            check_label(label, f"label {i}")
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
        """Replace all labels."""
        self._classes = {label: k for k, label in enumerate(labels)}
        self._array = as_array(labels)

    def to_json(self) -> list[Any]:
        """Return the labels as JSON types; tuples become lists."""
        return labels_to_json(self._classes)

    def from_json(self, value: object) -> list[Hashable]:
        """Return the labels of a state; raise if they are invalid or too many."""
        name = "the state's meta 'classes'"
        if not isinstance(value, list):
            raise ValueError(expected(name, value, "a list of labels"))
        labels = [_decode(v) for v in value]
        if len(set(labels)) < len(labels):
            raise ValueError(expected(name, value, "labels without duplicates"))
        if self.limit is not None and len(labels) > self.limit:
            wanted = f"at most {self.source} {self.limit}"
            raise ValueError(expected(f"number of {name}", len(labels), wanted))
        return labels


def read_labels(y: Any, length: int | None, name: str) -> list[Any]:
    """Return labels as a list of Python objects; if they are on a GPU, wait for it.

    >>> read_labels(np.array(["a", "b"]), 2, "y")
    ['a', 'b']
    """
    no_mask(name, y)
    if isinstance(y, list | tuple):
        labels = [python_object(v) for v in y]
        shape: tuple[int, ...] = (len(labels),)
    else:
        try:
            array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
            labels, shape = as_list(array.reshape(-1)), array.shape
        except Exception as error:  # an object may raise anything
            raise ValueError(f"{name} cannot be read as labels: {reason(error)}") from error
    if len(shape) != 1 or length not in (None, len(labels)):
        wanted = "(n,), one label each" if length is None else f"({length},)"
        raise ValueError(expected(f"shape of {name}", shape, wanted))
    return labels


def as_array(labels: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array of strings, numbers or dates if this is exact, else of objects.

    >>> as_array(["a", "b"]).dtype.kind, as_array([1, "b"]).dtype.kind
    ('U', 'O')
    """
    kinds = {label.dtype if type(label) in DATES else type(label) for label in labels}
    if len(kinds) == 1 and type(labels[0]) in (str, int, float, bool, *DATES):
        unsigned = kinds == {int} and min(labels) >= 0 and 2**63 <= max(labels) < 2**64
        array = np.array(labels, dtype=np.uint64 if unsigned else None)
        kept = as_list(array)
        if type(kept[0]) is type(labels[0]) and kept == list(labels):
            return array  # otherwise NumPy has cut "a\0" to "a", or made a float of an int
    array = np.empty(len(labels), dtype=object)
    for k, label in enumerate(labels):
        array[k] = label
    return array


def as_list(array: NDArray[Any]) -> list[Any]:
    """Return the labels in an array as Python objects; NumPy dates are unchanged."""
    return list(array) if array.dtype.kind in "mM" else array.tolist()


def labels_to_json(labels: Iterable[Any]) -> list[Any]:
    """Return labels as JSON types; tuples become lists, and dates dicts."""
    return [_encode(label) for label in labels]


def python_object(label: Any) -> Any:
    """Convert a NumPy or torch scalar to a Python object; other labels and dates are unchanged."""
    plain = isinstance(label, np.generic | Tensor) and not isinstance(label, DATES)
    return label.item() if plain else label


def no_mask(name: str, values: object) -> None:
    """Raise if an array has masked values, whose mask would be ignored.

    >>> no_mask("x", np.ma.masked_equal([1, -999], -999))
    Traceback (most recent call last):
    ...
    ValueError: x has masked values, expected an array without masked values
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} has masked values, expected an array without masked values")


def check_label(label: Any, name: str) -> None:
    """Raise unless a value can be a label: hashable, and equal to itself (NaN is not)."""
    try:
        hash(label)
        valid = bool(label == label)
    except Exception:  # an object may raise anything
        valid = False
    if not valid:
        raise ValueError(expected(name, label, "a hashable value that equals itself"))


def check_saved_label(label: Any, name: str) -> None:
    """Raise unless a value can be a label that a state can store."""
    check_label(label, name)
    try:
        _encode(label)
    except ValueError:
        raise ValueError(expected(name, label, SAVED)) from None


def _encode(label: Any) -> Any:
    label = python_object(label)  # for parts of a tuple
    if isinstance(label, tuple):
        return [_encode(part) for part in label]
    if label is None or isinstance(label, str | int):
        return label
    if isinstance(label, float) and math.isfinite(label):
        return label
    if isinstance(label, np.datetime64) and not np.isnat(label):
        return {"datetime64": str(label)}
    if isinstance(label, np.timedelta64) and not np.isnat(label):
        unit, step = np.datetime_data(label)
        return {"timedelta64": [int(label.astype(np.int64)) * step, unit]}
    raise ValueError(expected("a label of the learner's state", label, SAVED))


def _decode(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(_decode(part) for part in value)
    if isinstance(value, dict):
        return _decode_date(value)
    _encode(value)  # raises unless it is a label that can be saved
    return value  # type: ignore[no-any-return]


def _decode_date(value: dict[str, Any]) -> Hashable:
    try:
        ((kind, content),) = value.items()
        label = np.datetime64(content) if kind == "datetime64" else np.timedelta64(*content)
    except (TypeError, ValueError):
        label = None
    if label is None or _encode(label) != value:
        raise ValueError(expected("a label of the learner's state", value, SAVED))
    return label
