"""JSON and TOML of unknown origin: read, or refused with one line."""

from __future__ import annotations

from typing import Any

import pytest

from dualcba.parsing import DEEPEST, parse_json, parse_toml

NESTED = 100_000


@pytest.mark.parametrize("text", ["[" * NESTED, '{"a":' * NESTED, "[" * NESTED + "]" * NESTED])
def test_nested_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nested deeper than 50, expected fewer levels"):
        parse_json(text)


@pytest.mark.parametrize("text", ["a = " + "[" * NESTED, "a = " + "{a = " * NESTED, "[" * NESTED])
def test_nested_toml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested deeper than 50|Invalid|Expected"):
        parse_toml(text)


def test_a_dotted_key_is_as_deep_as_tables() -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        parse_toml(".".join("a" * 60) + " = 1")


def test_what_is_nested_less_is_read() -> None:
    value: Any = 1
    for _ in range(DEEPEST):
        value = [value]
    assert parse_json(str(value)) == value
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json(f"[{value}]")
