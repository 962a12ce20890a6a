"""JSON and TOML of unknown origin: what cannot be read is a ValueError, with one line."""

from __future__ import annotations

import json
import tomllib
from typing import Any

DEEPEST = 50
"""How deep lists and objects may be nested: far more than any file of ours has."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: lists or objects are nested deeper than 50, expected fewer levels
    """
    try:
        return _bounded(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    try:
        content: dict[str, Any] = _bounded(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None
    return content


def _bounded(value: Any) -> Any:
    """Return the value; raise if a function that calls itself could not walk it."""
    level = [value]
    for _ in range(DEEPEST):
        level = [each for outer in level for each in _inside(outer)]
        if not level:
            return value
    raise _too_deep()


def _inside(value: Any) -> list[Any]:
    """Return the elements of a list or an object that have elements themselves."""
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in each if isinstance(inner, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"lists or objects are nested deeper than {DEEPEST}, expected fewer levels")
