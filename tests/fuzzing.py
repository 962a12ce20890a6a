"""What the fuzzers share: their sizes, damages to bytes and to JSON, and what an error may be."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from typing import Any

NOTES = ("dualcba: --abreast has no effect", "dualcba: the tasks have")
FULL = os.environ.get("DUALCBA_FUZZ") == "full"


def attempts(sample: int, full: int = 10_000) -> int:
    """The number of attempts: all with `DUALCBA_FUZZ=full`, else a sample."""
    return full if FULL else sample


def refused_in_one_line(error: BaseException, kinds: tuple[type, ...], said: object) -> None:
    """Fail unless an error is of the accepted kinds and its message one line."""
    if not isinstance(error, kinds):
        raise AssertionError(f"{type(error).__name__}: {said}") from error
    lines = str(error).splitlines()
    if len(lines) != 1 or len(lines[0]) > 5000:
        raise AssertionError(f"{len(lines)} lines: {error!r}, {said}") from error


def one_line_or_fine(code: int, err: str, said: object) -> None:
    """Fail unless a command was accepted, or refused with one line."""
    assert code in (0, 2), (said, code, err)
    assert "Traceback" not in err, (said, err)
    lines = [line for line in err.splitlines() if not line.startswith(NOTES)]
    if code == 2:
        assert len(lines) == 1 or "Usage:" in err, (said, err)


# ---------------------------------------------------------------- bytes

Bytes = Callable[[bytearray, random.Random], bytearray]


def _part(data: bytearray, rng: random.Random) -> slice:
    start = rng.randrange(len(data) + 1)
    return slice(start, start + rng.choice([1, 2, 4, 8, 64, 1024]))


def flip(data: bytearray, rng: random.Random) -> bytearray:
    """Flip some bits, more often near the beginning, where headers are."""
    for _ in range(rng.choice([1, 1, 1, 3, 20])):
        end = min(len(data), 200) if rng.random() < 0.5 else len(data)
        if end:
            data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return data


def overwrite(data: bytearray, rng: random.Random) -> bytearray:
    """Replace a part by extreme numbers."""
    size = rng.choice([1, 2, 4, 8])
    values = [0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1]
    order = rng.choice(["little", "big"])
    start = rng.randrange(min(len(data), 300) + 1)
    data[start : start + size] = rng.choice(values).to_bytes(size, order)  # type: ignore[arg-type]
    return data


def insert(data: bytearray, rng: random.Random) -> bytearray:
    """Insert bytes or text that means something to a reader."""
    words = [b"\0", b"\xff" * 8, b"(" * 300, b"[" * 3000, b"-" * 5000, b"9" * 30, b"\n", b"\x85",
             b"../", b"'O'", b"r\xff\xff\xff\x7f", rng.randbytes(16)]  # fmt: skip
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.choice(words)
    return data


def remove(data: bytearray, rng: random.Random) -> bytearray:
    del data[_part(data, rng)]
    return data


def repeat(data: bytearray, rng: random.Random) -> bytearray:
    part = _part(data, rng)
    data[part.start : part.start] = data[part]
    return data


def truncate(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def replace_number(data: bytearray, rng: random.Random) -> bytearray:
    """Replace a digit of text by a number."""
    places = [i for i, c in enumerate(data[:2000]) if 48 <= c <= 57]
    if places:
        i = rng.choice(places)
        data[i : i + 1] = rng.choice([b"0", b"7", b"-1", b"999999999999", b"1e9", b"2, 2"])
    return data


DAMAGES: list[Bytes] = [
    flip, flip, overwrite, overwrite, insert, remove, repeat, truncate, replace_number,
    lambda _, rng: bytearray(rng.randbytes(rng.choice([0, 1, 10, 1000]))),
]  # fmt: skip


def damage(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes once or a few times."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        out = rng.choice(DAMAGES)(out, rng)
    return bytes(out)


# ---------------------------------------------------------------- JSON

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 1.5, -1e300, 1e300, 10**30, 10**400, float("nan"),
    float("inf"), "", "x", "er", "é\n", "\ud800", "[/b]", [], [[]], [1], ["a"], [[1, 2], [3]],
    [None], {}, {"a": 1}, {"a": {"b": [{}]}}, "natural", "shuffled", "complete", "cifar10",
]  # fmt: skip


def _odd(rng: random.Random) -> Any:
    """Return a copy: the next damage may change it, or put it into itself."""
    return copy.deepcopy(rng.choice(VALUES))


def damage_json(value: Any, rng: random.Random) -> Any:
    """Replace, remove or add something at a random place of a JSON value, in place."""
    places: list[tuple[Any, Any]] = []
    level = [value]
    while level:
        outer = level.pop()
        if isinstance(outer, dict | list):
            keys = list(outer) if isinstance(outer, dict) else range(min(len(outer), 12))
            places += [(outer, key) for key in keys]
            level += [outer[key] for key in keys]
    if not places:
        return _odd(rng)
    outer, key = rng.choice(places)
    how = rng.random()
    if how < 0.6:
        outer[key] = _odd(rng)
    elif how < 0.75:
        del outer[key]
    elif how < 0.9 and isinstance(outer, dict):
        outer[rng.choice(["x", "", "bn", "ibn", "step", "é", *outer])] = _odd(rng)
    else:
        other, name = rng.choice(places)
        outer[key] = copy.deepcopy(other[name])  # a copy: it may hold this place itself
    return value
