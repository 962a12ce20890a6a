"""What runs were made for: tables of the paper, the user's own tables, and sweeps.

A run appears in a table only if `purpose.json` in its folder says that it was made for that table.
Its spec alone is not enough: a user's run of ER on digits with M = 50 also matches a row of the
paper's tables at small scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dualcba.experiments.paper.catalogue import NAMES, READINGS, Experiment, experiments
from dualcba.experiments.paper.selection import scaled
from dualcba.experiments.purpose import AskedSweep, AskedTable, Purpose, read_purpose
from dualcba.experiments.result import Result
from dualcba.experiments.store import PLAN
from dualcba.methods.files import NotImportedError, check_imported
from dualcba.report.comparison import Served, serve
from dualcba.report.names import split_method
from dualcba.report.own_tables import parse_table
from dualcba.report.sweeps import Trial, trials

Shown = tuple[Experiment, list[Served]]
"""A table and the results in it."""


@dataclass(frozen=True)
class MadeFor:
    """The tables and sweeps that runs were made for, with their results."""

    paper: list[Shown] = field(default_factory=list)
    small: list[Shown] = field(default_factory=list)
    """Tables at small scale, on handwritten digits."""

    published: list[Shown] = field(default_factory=list)
    """Tables that compare with published values of other papers."""

    own: list[Shown] = field(default_factory=list)
    sweeps: list[tuple[AskedSweep, list[Trial]]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A line for each of the user's tables that cannot be read, with the reason."""

    @property
    def shown(self) -> list[Result]:
        """Results that the sections by dataset leave out, since a table or sweep shows them.

        Results at the paper's scale are shown in both places.
        """
        tables = [s.results for _, found in (*self.small, *self.own) for s in found]
        tried = [trial.results for _, found in self.sweeps for trial in found]
        return [result for results in (*tables, *tried) for result in results]


def made_for(runs: Mapping[Path, Result]) -> MadeFor:
    """Return what runs were made for, as recorded in their folders."""
    stores: dict[Path, dict[str, Result]] = {}
    for folder, result in runs.items():
        stores.setdefault(folder.parent, {})[folder.name] = result
    tables: dict[AskedTable, list[Result]] = {}
    sweeps: list[tuple[AskedSweep, list[Trial]]] = []
    for store, named in stores.items():
        purpose = _purpose(store)
        for asked in purpose.tables:
            tables.setdefault(asked, []).extend(named.values())
        for one in purpose.sweeps:
            found = [named[name] for name in one.runs if name in named]
            sweeps += [(one, trials(found, one.sweep))] if found else []
    return _by_kind(tables, sweeps)


def _purpose(store: Path) -> Purpose:
    """Return the recorded purpose of a folder.

    Earlier versions of `dualcba reproduce` recorded none. Their folders have no plan, unlike those
    of `dualcba run`; such runs are compared with the paper.
    """
    found = read_purpose(store)
    if found is not None:
        return found
    earlier = not (store / PLAN).is_file()
    names = (*NAMES, *READINGS)  # the tables of that version
    return Purpose(tables=[AskedTable(name) for name in names] if earlier else [])


def _by_kind(
    tables: Mapping[AskedTable, list[Result]], sweeps: list[tuple[AskedSweep, list[Trial]]]
) -> MadeFor:
    by_name = {name: k for k, name in enumerate(experiments())}
    order = sorted(tables, key=lambda asked: by_name.get(asked.name, 0))
    papers = [asked for asked in order if asked.toml is None and asked.name in by_name]
    full = _served(tables, {a: _experiment(a) for a in papers if a.scale == "paper"})
    own, left_out = _own(tables, (a for a in order if a.toml is not None))
    return MadeFor(
        paper=[(e, s) for e, s in full if e.beside == "paper"],
        small=_served(tables, {a: _experiment(a) for a in papers if a.scale == "small"}),
        published=[(e, s) for e, s in full if e.beside != "paper"],
        own=_served(tables, own),
        sweeps=sweeps,
        left_out=left_out,
    )


def _experiment(asked: AskedTable) -> Experiment:
    experiment = experiments()[asked.name]
    return scaled(experiment) if asked.scale == "small" else experiment


def _served(
    tables: Mapping[AskedTable, list[Result]], asked: Mapping[AskedTable, Experiment]
) -> list[Shown]:
    """Return the tables that have results."""
    found = [(experiment, serve(experiment, tables[one])) for one, experiment in asked.items()]
    return [(experiment, served) for experiment, served in found if any(s.results for s in served)]


def _own(
    tables: Mapping[AskedTable, list[Result]], asked: Iterable[AskedTable]
) -> tuple[dict[AskedTable, Experiment], list[str]]:
    """Return the user's own tables, and a line for each that cannot be read.

    A table may use a method from a Python file, which a report does not execute, or from a package
    that is not installed. Its runs are shown by dataset instead.
    """
    found: dict[AskedTable, Experiment] = {}
    left_out = []
    for one in asked:
        try:
            found[one] = parse_table(one.name, one.toml or "").experiment
        except ValueError as error:
            why = _files(one, tables[one]) or " ".join(str(error).split())
            shown = "its runs are shown by dataset"
            left_out.append(f"the table {one.name!r} is left out, {shown}: {why}")
    return found, left_out


def _files(asked: AskedTable, results: Iterable[Result]) -> str:
    """Return a note on the files that define a table's methods and were not imported, or ''."""
    paths = dict.fromkeys(
        path
        for result in results
        if split_method(result.method)[0] in (asked.toml or "")
        for path, sha256 in (result.fields.get("imports") or {}).items()
        if not _is_imported(path, sha256)
    )
    files = ", ".join(paths)
    return files and f"its methods come from {files}, which a report does not execute"


def _is_imported(path: str, sha256: str) -> bool:
    try:
        check_imported({path: sha256})
    except NotImportedError:
        return False
    return True
