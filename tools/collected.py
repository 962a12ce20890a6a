"""Read the rows written by `collect`, and match them with entries of experiments."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments import Spec, matches
from dualcba.experiments.paper.catalogue import Entry, Experiment, experiments
from dualcba.experiments.result import Result, make_spec
from dualcba.experiments.run import AGNOSTIC
from dualcba.experiments.upgrade import upgrade_row
from dualcba.options import definitions
from dualcba.report.comparison import Served
from dualcba.report.names import STATISTICS, split_method

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """A row of one file, or of several files with different seeds, as a result per seed."""

    files: tuple[str, ...]
    results: tuple[Result, ...]

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of the spec, without the seed."""
        return {k: v for k, v in self.results[0].fields.items() if k != "seed"}


@dataclass(frozen=True)
class Sourced(Served):
    """An entry with its results, and the files of the results."""

    files: tuple[str, ...] = ()


def read(folder: Path) -> list[Group]:
    """Return all rows of files written by `collect`; ignore other files."""
    groups = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        rows = content.get("rows") if isinstance(content, dict) else None
        given = rows if isinstance(rows, list) else []
        groups += [unfold(path.name, row) for row in given if "spec" in row]
    return groups


def read_variants(path: Path) -> list[Group]:
    """Return the runs on test data in a file written by `tools.variants`."""
    found: dict[str, list[Result]] = {}
    for run in json.loads(path.read_text("utf-8"))["runs"]:
        spec = Spec(**run["options"], seed=run["seed"])
        if not spec.validation:
            result = Result(spec, run["seed"], run["scores"], run["tasks"])
            found.setdefault(replace(spec, seed=0).name, []).append(result)
    file = f"{path.parent.name}/{path.name}"
    return [Group((file,), tuple(results)) for results in found.values()]


def read_all(results: Path) -> list[Group]:
    """Return all rows written by `tools.collect`, and runs of the recipe on test data."""
    tested = sorted((results / "variants").glob("*-test.json"))
    return read(results) + [group for path in tested for group in read_variants(path)]


def unfold(file: str, row: dict[str, Any]) -> Group:
    """Return the results of which a row was made, without the parts that it does not store."""
    fields, source = row["spec"], row.get("agnostic_provenance")
    if "agnostic_provenance" not in row:
        fields, source = upgrade_row(fields)
    fields = _own(fields) | ({} if source is None else {"agnostic_from": AGNOSTIC})
    spec = make_spec(fields)
    results = []
    for k, seed in enumerate(row["seeds"]):
        scores = {
            statistics: {name: m and m["values"][k] for name, m in found.items()}
            for statistics, found in row["scores"].items()
        }
        tasks = {statistics: [each[k]] for statistics, each in row.get("tasks", {}).items()}
        origin = None if source is None else {**source, "seed": seed}
        results.append(Result(spec, seed, scores, tasks, agnostic_provenance=origin))
    return Group((file,), tuple(results))


def _own(fields: Fields) -> dict[str, Any]:
    """Drop options of adaptors that the method lacks, which early files include."""
    kind = split_method(fields["method"])[1]
    others = {
        name for name, o in definitions(Spec).items() if o.adaptors and kind not in o.adaptors
    }
    return {name: value for name, value in fields.items() if name not in others}


@dataclass(frozen=True)
class Collected:
    """All groups, and the files to prefer if several have the same row."""

    groups: Sequence[Group]
    prefer: Sequence[str] = ()

    def __post_init__(self) -> None:
        for file in self.prefer:
            self.of(file)

    @cached_property
    def _by_identity(self) -> dict[Hashable, list[Group]]:
        """The groups by the identity of their specs."""
        found: dict[Hashable, list[Group]] = {}
        for group in self.groups:
            found.setdefault(group.results[0].identity, []).append(group)
        return found

    def of(self, file: str) -> list[Group]:
        """Return the groups of one file."""
        found = [g for g in self.groups if file in g.files]
        if not found:
            known = dict.fromkeys(name for g in self.groups for name in g.files)
            raise ValueError(unknown("file", file, known))
        return found

    def serving(self, entry: Entry) -> Group | None:
        """Return the results that match an entry: of one file, and further seeds of other files.

        The first group is the one with most seeds, or of several, the one in a preferred file.
        """
        near = self._by_identity.get(entry.identity, ())
        found = [g for g in near if matches(g.results[0], entry.spec, entry.source)]
        most = max((len(g.results) for g in found), default=0)
        firsts = [g for g in found if len(g.results) == most]
        preferred = [g for file in self.prefer for g in firsts if file in g.files]
        for other in firsts[1:] if not preferred else ():
            if _accuracies(other) != _accuracies(firsts[0]) and _seeds(other) == _seeds(firsts[0]):
                what = f"{firsts[0].files[0]} and {other.files[0]} disagree on {entry.method}"
                raise ValueError(f"{what}, expected one of them in the prefer marker")
        return joined([*preferred, *firsts, *found])

    def serve(self, experiment: str, column: str, changed: Fields | None = None) -> list[Sourced]:
        """Return the entries of a column that have been run, with their results."""
        entries = [e for e in named(experiment).entries if e.column == column]
        if not entries:
            known = dict.fromkeys(e.column for e in named(experiment).entries)
            raise ValueError(unknown(f"column of {experiment}", column, known))
        entries = [replace(e, given={**e.given, **(changed or {})}) for e in entries]
        served = [(entry, self.serving(entry)) for entry in entries]
        return [Sourced(entry, group.results, group.files) for entry, group in served if group]


def joined(groups: Sequence[Group]) -> Group | None:
    """Return a group with all seeds, each from the first group that has it."""
    files: list[str] = []
    found: dict[int, Result] = {}
    for group in groups:
        new = {r.seed: r for r in group.results if r.seed not in found}
        found |= new
        files += group.files if new else ()
    results = tuple(found[seed] for seed in sorted(found))
    return Group(tuple(files), results) if results else None


def named(experiment: str) -> Experiment:
    """Return an experiment by its name."""
    if experiment not in experiments():
        raise ValueError(unknown("experiment", experiment, experiments()))
    return experiments()[experiment]


def _seeds(group: Group) -> list[int]:
    return [r.seed for r in group.results]


def _accuracies(group: Group) -> list[Any]:
    return [(r.seed, *(r.scores[s]["acc"] for s in STATISTICS)) for r in group.results]
