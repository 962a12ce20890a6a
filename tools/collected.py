"""The rows that `collect` wrote, and which of them serve an entry of the catalogue."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.errors import unknown
from dualcba.evaluation import STATISTICS
from dualcba.experiments.paper.catalogue import Experiment, donor, experiments, matches
from dualcba.experiments.spec import ADAPTOR_DEFAULTS, ADAPTOR_OPTIONS
from dualcba.methods import parse_method
from dualcba.report.comparison import Result, Served

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """One row of a file, as a result per seed."""

    file: str
    spec: Fields
    results: tuple[Result, ...]


def read(folder: Path) -> list[Group]:
    """All rows of all files that `collect` wrote there; other files are passed over."""
    groups = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        rows = content.get("rows") if isinstance(content, dict) else None
        given = rows if isinstance(rows, list) else []
        groups += [unfold(path.name, row) for row in given if "spec" in row]
    return groups


def unfold(file: str, row: dict[str, Any]) -> Group:
    """A row as the results that it was made of, so far as it holds them.

    Early files give the adaptor's fields to methods without one; these are dropped.
    """
    own = ADAPTOR_OPTIONS[parse_method(row["method"])[1]]
    spec = {k: v for k, v in row["spec"].items() if k not in ADAPTOR_DEFAULTS or k in own}
    top = {name: spec[name] for name in ("method", "dataset", "setting", "buffer")}
    results = []
    for k, seed in enumerate(row["seeds"]):
        scores = {
            norm: {name: m and m["values"][k] for name, m in row["scores"][norm].items()}
            for norm in STATISTICS
        }
        tasks = {norm: [each[k]] for norm, each in row.get("tasks", {}).items()}
        source = donor(spec)
        part = {} if source is None else {"adaptor": f"{source}-s{seed}.safetensors"}
        result = {"status": "complete", "seed": seed, "spec": spec | part, "file": file}
        results.append(top | result | {"scores": scores, "accuracy_matrix": tasks})
    return Group(file, spec, tuple(results))


@dataclass(frozen=True)
class Collected:
    """All groups, and the files that come first where several have a row."""

    groups: Sequence[Group]
    prefer: Sequence[str] = ()

    def __post_init__(self) -> None:
        for file in self.prefer:
            self.of(file)

    def of(self, file: str) -> list[Group]:
        """The groups of one file."""
        found = [g for g in self.groups if g.file == file]
        if not found:
            raise ValueError(unknown("file", file, dict.fromkeys(g.file for g in self.groups)))
        return found

    def serving(self, spec: dict[str, Any]) -> tuple[Result, ...]:
        """The group with most seeds that serves a spec; of several, one of a file preferred."""
        found = [g for g in self.groups if _quick(g.spec) == _quick(spec)]
        found = [g for g in found if matches(g.results[0], spec)]
        most = max((len(g.results) for g in found), default=0)
        found = [g for g in found if len(g.results) == most]
        named = [g for file in self.prefer for g in found if g.file == file]
        for other in found[1:] if not named else ():
            if _accuracies(other) != _accuracies(found[0]):
                what = f"{found[0].file} and {other.file} disagree on {spec['method']}"
                raise ValueError(f"{what}, expected one of them in the prefer marker")
        return (named or found)[0].results if found else ()

    def serve(self, experiment: str, column: str, changed: Fields | None = None) -> list[Served]:
        """The entries of a column that have been run, with their results."""
        entries = [e for e in named(experiment).entries if e.column == column]
        if not entries:
            known = dict.fromkeys(e.column for e in named(experiment).entries)
            raise ValueError(unknown(f"column of {experiment}", column, known))
        entries = [dataclasses.replace(e, spec=e.spec | dict(changed or {})) for e in entries]
        served = [Served(entry, self.serving(entry.spec)) for entry in entries]
        return [s for s in served if s.results]


def named(experiment: str) -> Experiment:
    """An experiment by its name."""
    if experiment not in experiments():
        raise ValueError(unknown("experiment", experiment, experiments()))
    return experiments()[experiment]


def _quick(spec: Fields) -> tuple[Any, ...]:
    return spec["method"], spec["dataset"]


def _accuracies(group: Group) -> list[Any]:
    return [(r["seed"], *(r["scores"][norm]["acc"] for norm in STATISTICS)) for r in group.results]
