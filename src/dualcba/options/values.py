"""Parsers and checks of options whose values have several forms."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dualcba.errors import expected
from dualcba.options.definition import check_choice
from dualcba.parsing import parse_json

RecorderName = Literal[
    "predictions",
    "transitions",
    "alignment",
    "prequential",
    "neighbours",
    "random-features",
    "task-aware",
]
TrackerName = Literal["tensorboard", "mlflow", "wandb", "trackio"]


def numbers(text: str) -> int | list[Any] | str:
    """Read a whole number, several separated by commas, a list in brackets, or any other word.

    >>> numbers("5"), numbers("2,3"), numbers("[[0, 1], [2]]"), numbers("shuffled")
    (5, [2, 3], [[0, 1], [2]], 'shuffled')
    """
    try:
        if text.startswith("["):
            return list(parse_json(text))
        values = [int(part) for part in text.split(",")]
    except ValueError:
        return text
    return values if len(values) > 1 else values[0]


def name_and_value(text: str, flag: str = "--option") -> tuple[str, Any]:
    """Read `name=value`; the value is parsed as JSON if it is valid JSON, and else stays text.

    >>> name_and_value("alpha=0.5"), name_and_value("kind=fast")
    (('alpha', 0.5), ('kind', 'fast'))
    """
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(expected(flag, text, "name=value"))
    try:
        return name, parse_json(value)
    except json.JSONDecodeError:
        return name, value
    except ValueError as error:
        raise ValueError(f"{flag} {name}: {error}") from None


def name_and_values(text: str) -> tuple[str, Any]:
    """Read `name=value,value` or a range `name=low:high` or `name=low:high:log`.

    Each value is parsed as JSON if it is valid JSON, and else stays text. `samples`, `score` and
    `statistics` have one value, which does not become a list.

    >>> name_and_values("buffer=200,500"), name_and_values("samples=20")
    (('buffer', [200, 500]), ('samples', 20))
    >>> name_and_values("lr=0.01:0.1:log")
    ('lr', {'low': 0.01, 'high': 0.1, 'log': True})
    """
    name, sign, rest = text.partition("=")
    if not sign or not rest:
        raise ValueError(expected("--sweep", text, "name=value,value or name=low:high[:log]"))
    bounds = rest.removesuffix(":log").split(":")
    ends = [_json_or_text(bound) for bound in bounds]
    if len(bounds) == 2 and all(isinstance(end, int | float) for end in ends):
        return name, {"low": ends[0], "high": ends[1], "log": rest.endswith(":log")}
    if name in ("samples", "score", "statistics"):
        return name, _json_or_text(rest)
    whole = _json_or_text(f"[{rest}]")
    return name, whole if isinstance(whole, list) else [_json_or_text(v) for v in rest.split(",")]


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text.strip()


def task_division(name: str, value: Any) -> Any:
    """Accept a number of tasks, their sizes or their classes."""
    groups = isinstance(value, list | tuple) and all(map(_whole_list, value))
    if not (groups or _whole(value) or _whole_list(value)):
        wanted = "a number of tasks, their sizes or their classes"
        raise ValueError(expected(name, value, wanted))
    return value


def class_order(name: str, value: Any) -> Any:
    """Accept `natural`, `shuffled` or a list of classes."""
    if not _whole_list(value) and value not in ("natural", "shuffled"):
        raise ValueError(expected(name, value, "'natural', 'shuffled' or a list of classes"))
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_whole, value))


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Accept names and values."""
    if not isinstance(value, Mapping):
        raise ValueError(expected(name, value, "names and values"))
    return dict(value)


def recorders(name: str, value: Any) -> list[str]:
    """Accept the names of recorders, in a list or separated by commas; each is kept once."""
    return _some_of(get_args(RecorderName), name, value)


def trackers(name: str, value: Any) -> list[str]:
    """Accept the names of trackers, in a list or separated by commas; each is kept once."""
    return _some_of(get_args(TrackerName), name, value)


def _some_of(known: Sequence[str], name: str, value: Any) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise ValueError(expected(name, value, f"some of {', '.join(known)}"))
    for word in (names := [word.strip() for word in names]):
        check_choice(name, word, known)
    return list(dict.fromkeys(names))


def words(name: str, value: Any) -> list[str]:
    """Accept words, in a list or separated by commas; each is kept once."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(w, str) for w in given):
        raise ValueError(expected(name, value, "a name or a list of names"))
    return list(dict.fromkeys(word.strip() for word in given))


def titles(text: str) -> list[str]:
    """Read titles, which may have commas in them, separated by semicolons.

    >>> titles("ER; LAS, CBA;")
    ['ER', 'LAS, CBA']
    """
    return [title for part in text.split(";") if (title := part.strip())]


PUBLISHED = ("timm", "hf")
"""Prefixes of networks from other packages, as in `timm:resnet18`."""


def network_name(known: Sequence[str]) -> Callable[[str, Any], Any]:
    """Return the check of a network: a known name, or `timm:NAME` or `hf:NAME`."""

    def accept(name: str, value: Any) -> Any:
        prefix, _, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
        if prefix not in PUBLISHED or not rest:
            check_choice(name, value, [*known, *(f"{p}:NAME" for p in PUBLISHED)])
        return value

    return accept


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_from(low: float, below: float, wanted: str) -> Callable[[str, Any], float]:
    def accept(name: str, value: Any) -> float:
        if not _number(value) or not low <= value < below:
            raise ValueError(expected(name, value, wanted))
        return float(value)

    return accept


fraction = _number_from(0, 1, "a fraction from 0 to below 1")
at_least_one = _number_from(1, math.inf, "a number of at least 1")
not_negative = _number_from(0, math.inf, "a number of at least 0")


@dataclass(frozen=True)
class Interval:
    """A number of seconds or of steps."""

    seconds: float | None = None
    steps: int | None = None


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_INTERVAL = re.compile(r"([0-9.]{1,12})\s*(s|m|h|steps?)?")


def read_interval(text: str) -> Interval | None:
    """Parse an interval; `off` gives None.

    >>> read_interval("5m"), read_interval("200steps").steps, read_interval("off")
    (Interval(seconds=300.0, steps=None), 200, None)
    """
    if text == "off":
        return None
    found = _INTERVAL.fullmatch(text)
    number = float(found[1]) if found and found[1].count(".") <= 1 and found[1] != "." else math.nan
    unit = found[2] if found else None
    steps = unit in ("step", "steps")
    if not number > 0 or (steps and not number.is_integer()):
        raise ValueError(text)
    return Interval(steps=int(number)) if steps else Interval(number * UNITS[unit or "m"])


def interval(name: str, value: Any) -> str:
    """Accept minutes as a number, a text such as `30s`, `5m`, `1h` or `200steps`, or `off`."""
    text = f"{value}m" if _number(value) else value
    try:
        if not isinstance(text, str):
            raise ValueError(text)
        read_interval(text)
    except ValueError:
        wanted = "minutes, or a text such as '30s', '5m', '1h', '200steps' or 'off'"
        raise ValueError(expected(name, value, wanted)) from None
    return text


def path(name: str, value: Any) -> Path:
    """Accept a path."""
    if not isinstance(value, str | Path):
        raise ValueError(expected(name, value, "a path"))
    return Path(value)


def path_text(name: str, value: Any) -> str:
    """Accept a path, and return it as text."""
    return str(path(name, value))
