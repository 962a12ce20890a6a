"""The user's own tables: rows × columns of any specs, read from a TOML file.

The format is that of the files in `dualcba/experiments/paper`, see `catalogue`; only `rows` is
required. `seeds` is the number of seeds, and `figure` may be a list. `imports` names Python files
with methods; the command line executes them, a report does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.errors import at_least, expected, one_of, unknown
from dualcba.experiments.paper.catalogue import BESIDE, OWN, Experiment, make_experiment
from dualcba.experiments.paper.scale import SOURCES
from dualcba.experiments.spec import fields, read_toml
from dualcba.methods import SUFFIXES
from dualcba.parsing import parse_toml
from dualcba.prediction import STATISTICS
from dualcba.report.figures.registry import FIGURES
from dualcba.report.names import SCORES, slug

KEYS = (
    "title", "note", "scores", "figure", "seeds", "spec", "columns", "rows", "beside", "adaptors",
    "imports",
)  # fmt: skip


@dataclass(frozen=True)
class OwnTable:
    """A table, its number of seeds (None if the file has none), and the text of the file."""

    experiment: Experiment
    seeds: int | None
    toml: str


def is_file(name: str) -> bool:
    """Return whether the name of an experiment is the path of a TOML file.

    >>> is_file("my.toml"), is_file("main")
    (True, False)
    """
    return name.endswith(".toml")


def read_table(path: Path) -> OwnTable:
    """Read a table from a file; raise a ValueError that names the file if it is not valid."""
    read_toml(path)  # raises an error if the file cannot be read
    try:
        return parse_table(slug(path.stem), path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_table(name: str, text: str) -> OwnTable:
    """Return a table from the text of its file."""
    content = parse_toml(text)
    for key in content:
        if key not in KEYS:
            raise ValueError(unknown("key", key, KEYS))
    seeds = content.get("seeds")
    if seeds is not None:
        at_least(1, seeds=seeds)
    title = content.get("title", name)
    full = {"title": title, "note": "", "scores": ["acc", "fm"], "columns": {title: {}}, **content}
    _check(full)
    plain = {"dataset": "digits", "method": "er-dual-cba"}  # the defaults of a spec
    full["spec"] = plain | full.get("spec", {})
    experiment = make_experiment(name, full)
    for entry in experiment.entries:
        try:
            entry.spec  # noqa: B018  # raises an error if values are not valid
        except (TypeError, ValueError) as error:
            raise ValueError(f"row {entry.row!r}, column {entry.column!r}: {error}") from None
    return OwnTable(experiment, seeds, text)


def _check(content: Mapping[str, Any]) -> None:
    """Raise a ValueError unless all parts have the right form and all names are known."""
    for key in ("title", "note"):
        if not isinstance(content[key], str):
            raise ValueError(expected(key, content[key], "text"))
    _check_names("scores", content["scores"], SCORES, numbered=True)
    figure = content.get("figure", [])
    _check_names("figure", [figure] if isinstance(figure, str) else figure, FIGURES)
    for key in ("columns", "rows"):
        if not isinstance(content.get(key), Mapping) or not content[key]:
            raise ValueError(
                expected(key, content.get(key), "at least one, each a table of fields")
            )
        for label, part in content[key].items():
            _check_fields(f"{key}.{label}", part)
    _check_fields("spec", content.get("spec", {}))
    one_of(BESIDE, beside=content.get("beside", "paper"))
    _check_adaptors(content.get("adaptors", {}))
    for label, row in content["rows"].items():
        _check_values(label, row, content)


def _check_names(key: str, names: Any, known: Any, *, numbered: bool = False) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(expected(key, names, f"some of {', '.join(known)}"))
    for name in names:
        task = name.removeprefix("task")
        if name not in known and not (numbered and task != name and task.isdecimal()):
            raise ValueError(unknown(key.removesuffix("s"), name, known))


def _check_fields(where: str, part: Any) -> None:
    if not isinstance(part, Mapping):
        raise ValueError(expected(where, part, "fields and their values"))
    for name in part:
        if name not in (*fields(), *OWN) or name == "seed":
            raise ValueError(unknown(f"field of {where}", name, [*fields(), *OWN]))
    if "statistics" in part:
        one_of(STATISTICS, **{f"{where}.statistics": part["statistics"]})
    if "donor" in part:
        one_of(SOURCES, **{f"{where}.donor": part["donor"]})
    counted = part.get("counted", [])
    if not isinstance(counted, list) or not all(isinstance(one, str) for one in counted):
        raise ValueError(expected(f"{where}.counted", counted, "a list of columns"))


def _check_adaptors(given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(expected("adaptors", given, "kinds of adaptors by title"))
    for title, kind in given.items():
        one_of(SUFFIXES, **{f"adaptors.{title}": kind})


def _check_values(label: str, row: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise a ValueError unless there is a list per column, empty or with one number per score."""
    columns, scores = len(content["columns"]), len(content["scores"])
    key = content.get("beside", "paper")
    for other in BESIDE:
        if other in row and other != key:
            wanted = f"{key!r} as the key of values: beside is {key!r}"
            raise ValueError(expected(f"a key of rows.{label}", other, wanted))
    if key not in row:
        return
    given = row[key]
    lists = isinstance(given, list) and len(given) == columns
    if not lists or not all(isinstance(v, list) and len(v) in (0, scores) for v in given):
        wanted = f"{columns} lists, one per column, each with {scores} numbers or none"
        raise ValueError(expected(f"rows.{label}.{key}", given, wanted))
    for value in (value for values in given for value in values):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(expected(f"rows.{label}.{key}", value, "numbers"))
