"""The purpose of the runs in a folder: sweeps, experiments of the paper, or the user's own tables.

It is recorded in `purpose.json`, so that a report shows runs only in the tables that they were made
for: runs for different purposes can have the same spec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualcba.errors import expected
from dualcba.experiments.sweep import Sweep, read_sweep
from dualcba.io import folder_lock, write_json
from dualcba.parsing import parse_json

PURPOSE = "purpose.json"
PURPOSE_SCHEMA = 1


@dataclass(frozen=True)
class AskedTable:
    """A table that runs were made for: one of the paper at a scale, or the text of a TOML file."""

    name: str
    scale: str = "paper"
    toml: str | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if not isinstance(value, str) and (key, value) != ("toml", None):
                raise ValueError(expected(key, value, "text"))


@dataclass(frozen=True)
class AskedSweep:
    """A sweep, and the names of its runs."""

    sweep: Sweep
    runs: Sequence[str]


@dataclass(frozen=True)
class Purpose:
    """The sweeps and tables that the runs of a folder were made for."""

    sweeps: Sequence[AskedSweep] = ()
    tables: Sequence[AskedTable] = field(default_factory=tuple)


def add_sweep(out: Path, sweep: Sweep, runs: Iterable[str]) -> None:
    """Record that runs of a folder belong to a sweep.

    An earlier record of the same sweep is replaced if these runs include all of its runs; otherwise
    it had other methods, seeds or options.
    """
    entry = {"sweep": sweep.to_dict(), "runs": list(runs)}
    _add(out, "sweeps", [entry], _contains)


def add_tables(out: Path, tables: Iterable[AskedTable]) -> None:
    """Record that runs of a folder were made for tables; replace tables with the same name."""
    _add(out, "tables", [vars(one) for one in tables], _same_table)


def _contains(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return new["sweep"] == old["sweep"] and set(old["runs"]) <= set(new["runs"])


def _same_table(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return (new["name"], new["scale"]) == (old["name"], old["scale"])


def _add(
    out: Path, kind: str, entries: Sequence[dict[str, Any]], replaces: Callable[[Any, Any], bool]
) -> None:
    with folder_lock(out):
        read_purpose(out)  # raises if the entries are damaged
        content = _content(out)
        kept = [
            old for old in content.get(kind, []) if not any(replaces(new, old) for new in entries)
        ]
        whole = {**content, "schema": PURPOSE_SCHEMA, kind: [*kept, *entries]}
        write_json(out / PURPOSE, whole)


def read_purpose(out: Path) -> Purpose | None:
    """Return the purpose of the runs in a folder, or None if it is not recorded."""
    if not (out / PURPOSE).is_file():
        return None
    content = _content(out)
    try:
        sweeps = [
            AskedSweep(read_sweep(one["sweep"]), [str(name) for name in one["runs"]])
            for one in content.get("sweeps", [])
        ]
        tables = [AskedTable(**one) for one in content.get("tables", [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(out, error) from None
    return Purpose(sweeps, tables)


def _content(out: Path) -> dict[str, Any]:
    path = out / PURPOSE
    if not path.is_file():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, Mapping):
            raise ValueError(f"it holds a {type(content).__name__}, expected an object")
        if content.get("schema") != PURPOSE_SCHEMA:
            raise ValueError(expected("the schema", content.get("schema"), str(PURPOSE_SCHEMA)))
        for kind in ("sweeps", "tables"):
            if not isinstance(content.get(kind, []), list):
                raise ValueError(expected(kind, content[kind], "a list"))
    except ValueError as error:
        raise _unreadable(out, error) from None
    return dict(content)


def _unreadable(out: Path, error: Exception) -> ValueError:
    why = " ".join(str(error).split())
    wanted = "a file that `dualcba run` or `dualcba reproduce` wrote"
    return ValueError(f"{out / PURPOSE} cannot be read: {why}, expected {wanted}")
