"""Error messages: one line that says what was wrong, where, and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, with the nearest one that is.

    >>> unknown("method", "er-dualcba", ["er", "er-cba", "er-dual-cba"])
    "unknown method 'er-dualcba', did you mean 'er-dual-cba'? (known: er, er-cba, er-dual-cba)"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(names)})"


def expected(field: str, value: object, wanted: str) -> str:
    """Name the field, the value it had and what was expected.

    >>> expected("buffer", 0, "a whole number of at least 1")
    'buffer is 0, expected a whole number of at least 1'
    """
    return f"{field} is {value!r}, expected {wanted}"
