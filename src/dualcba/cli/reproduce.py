"""`dualcba reproduce`: run what an experiment of the paper lacks, show it beside the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dualcba.cli.progress import Ways, run_with_progress
from dualcba.errors import expected
from dualcba.experiments import Hardware, Load, Spec, check_all
from dualcba.experiments.eta import estimate, in_words
from dualcba.experiments.paper.catalogue import Experiment, named
from dualcba.experiments.paper.coverage import Coverage, Wanted, cover, ready_spec, rounds
from dualcba.experiments.paper.selection import choose
from dualcba.experiments.pool import how_many
from dualcba.experiments.result import Result
from dualcba.experiments.store import check_folder, read_results
from dualcba.report import render
from dualcba.report.data import experiment_data
from dualcba.report.names import count
from dualcba.report.tables.terminal import show, wide_console


@dataclass(frozen=True)
class Request:
    """The options of a call: what to run, where, and what to print."""

    name: str
    seeds: int
    dataset: str | None
    column: str | None
    scale: str
    out: Path
    ways: Ways
    dry_run: bool
    quiet: bool
    as_json: bool

    @property
    def shown(self) -> bool:
        """Whether text for people is printed."""
        return not self.quiet and not self.as_json

    def say(self, line: str) -> None:
        """Print a line of text for people."""
        if self.shown:
            typer.echo(line)


def reproduce(request: Request, load: Load, hardware: Hardware) -> None:
    """Print what is needed and how long it takes, run what is missing, show and write all."""
    if request.seeds < 1:
        raise ValueError(expected("seeds", request.seeds, "a whole number of at least 1"))
    chosen = choose(named(request.name), request.dataset, request.scale, request.column)
    check_folder(request.out)
    coverage = cover(chosen, request.seeds, read_results(request.out))
    needed = count(len(coverage.needed), "run")
    request.say(f"{needed} needed, {coverage.there} already there")
    able = coverage if request.dry_run else _with_data(coverage, load, request)
    if able.missing and request.shown:
        request.say(_how_long(able, load, hardware, request))
    paths: list[Path] = []
    if not request.dry_run:
        run_missing(able, load, hardware, request.out, request.ways, show=request.shown)
        paths = write_files(chosen, request.out)
    _print(chosen, coverage, paths, request)


def _with_data(coverage: Coverage, load: Load, request: Request) -> Coverage:
    """Leave out the runs whose datasets are not there, and say so."""
    absent: dict[str, OSError] = {}
    for name in sorted({name for one in coverage.missing for name in one.datasets}):
        try:
            load(Spec(dataset=name))
        except FileNotFoundError as error:
            absent[name] = error
    left = [one for one in coverage.missing if not one.datasets & set(absent)]
    if absent and not left and not coverage.there:
        raise next(iter(absent.values()))
    for name, why in absent.items():
        request.say(f"left out, since {name} is needed: {why}")
    return Coverage(coverage.needed, left)


def run_missing(
    coverage: Coverage, load: Load, hardware: Hardware, out: Path, ways: Ways, *, show: bool
) -> None:
    """Run what is missing; runs that take a part from another one come after it."""
    if coverage.missing:
        check_all(_one_of_each_kind(coverage.missing), load, hardware)
        out.mkdir(parents=True, exist_ok=True)
    for part in rounds(coverage.missing):
        runs = read_results(out)
        specs = [ready_spec(one, out, runs) for one in part]
        run_with_progress(specs, load, hardware, out, ways, show=show)


def _one_of_each_kind(missing: Sequence[Wanted]) -> list[Spec]:
    kinds: dict[tuple[Any, ...], Spec] = {}
    for one in missing:
        spec = one.spec
        kind = (spec.dataset, spec.network, spec.method, spec.setting, spec.norm)
        kinds.setdefault((*kind, spec.agnostic_from), spec)
    return list(kinds.values())


def _how_long(coverage: Coverage, load: Load, hardware: Hardware, request: Request) -> str:
    """Return a line on the time that the missing runs take; a dry run needs no data for it."""
    specs = [one.spec for one in coverage.missing]  # a part from another run costs no time
    done = [result.to_dict() for result in _results(request.out)]
    try:
        time = estimate(specs, done, load, hardware)
    except OSError as error:
        if not request.dry_run:
            raise
        return f"{count(len(specs), 'run')} to do; how long they take is not known: {error}"
    finished = f"{count(time.finished, 'run')} from finished ones of the same kind"
    timed = f"{count(time.timed, 'run')} from a few timed steps"
    sources = [finished] * (time.finished > 0) + [timed] * (time.timed > 0)
    jobs = how_many(request.ways.jobs, len(specs), hardware, abreast=request.ways.abreast)
    length, number = in_words(time.seconds / jobs), "one" if jobs == 1 else str(jobs)
    return (
        f"{count(len(specs), 'run')} to do, about {length} here {number} at a time "
        f"({', '.join(sources)})"
    )


def _results(out: Path) -> list[Result]:
    return list(read_results(out).values())


def write_files(chosen: Sequence[Experiment], out: Path) -> list[Path]:
    """Write the tables and figures of each experiment as files."""
    results = _results(out)
    return [path for one in chosen for path in render(one, results, out / "tables")]


# ---------------------------------------------------------------------- output


def _print(
    chosen: Sequence[Experiment], coverage: Coverage, paths: Sequence[Path], request: Request
) -> None:
    if request.as_json:
        typer.echo(_json(chosen, coverage, request.out))
    elif request.shown and not request.dry_run:
        show_tables(chosen, request)
        for line in map(str, paths) if len(chosen) == 1 else _briefly(paths, request.out):
            request.say(line)


def show_tables(chosen: Sequence[Experiment], request: Request) -> None:
    """Print the tables of each experiment."""
    results, console = _results(request.out), wide_console()
    for experiment in chosen:
        show(experiment, results, console, small=request.scale == "small")
    request.say(f"{count(len(results), 'result')} in {request.out}")


def _briefly(paths: Sequence[Path], out: Path) -> list[str]:
    page = f"for all in one page: dualcba report {out}"
    return [f"{count(len(paths), 'file')} of tables and figures in {out / 'tables'}", page]


def _json(chosen: Sequence[Experiment], coverage: Coverage, out: Path) -> str:
    results = _results(out)
    entries = {one.name: experiment_data(one, results) for one in chosen}
    needed, missing = len(coverage.needed), len(coverage.missing)
    counts = {"needed": needed, "there": coverage.there, "missing": missing}
    return json.dumps({"runs": counts, "experiments": entries})
