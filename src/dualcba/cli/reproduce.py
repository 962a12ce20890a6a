"""`dualcba reproduce`: say what is needed, run what is missing, show it beside the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dualcba.cli.progress import Ways, run_with_progress
from dualcba.cli.run import prepare
from dualcba.cli.tables import as_data, wide_console
from dualcba.cli.tables import show as show_tables
from dualcba.errors import expected
from dualcba.experiments import Hardware, Load, Loader, Spec, check_all
from dualcba.experiments.eta import estimate, in_words
from dualcba.experiments.paper.catalogue import Experiment, donor, named
from dualcba.experiments.paper.plan import (
    Plan,
    Wanted,
    choose,
    make_plan,
    needs,
    rounds,
    to_spec,
)
from dualcba.experiments.pool import process_count
from dualcba.experiments.store import check_folder, read_runs
from dualcba.options import ReproduceCommand
from dualcba.report import render
from dualcba.report.names import count


@dataclass(frozen=True)
class Request:
    """What was asked for, and how it is to be told."""

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
        """Whether there is text for people."""
        return not self.quiet and not self.as_json

    def say(self, line: str) -> None:
        """A line for people."""
        if self.shown:
            typer.echo(line)


def reproduce_command(name: str, options: ReproduceCommand) -> None:
    """Run what is missing of an experiment, then show and write its tables."""
    small = options.scale != "paper"
    out = options.out or Path(f"runs/reproduce{'-small' if small else ''}")
    hardware, ways = prepare(options)
    request = Request(
        name, options.seeds, options.dataset, options.column, options.scale, out, ways,
        options.dry_run, options.quiet, options.json,
    )  # fmt: skip
    reproduce(request, Loader(options.data_dir), hardware)


def reproduce(request: Request, load: Load, hardware: Hardware) -> None:
    """Say what is needed and how long it takes, run what is missing, show and write all."""
    if request.seeds < 1:
        raise ValueError(expected("seeds", request.seeds, "a whole number of at least 1"))
    chosen = choose(named(request.name), request.dataset, request.scale, request.column)
    out = request.out
    check_folder(out)
    plan = make_plan(chosen, request.seeds, read_runs(out))
    request.say(f"{count(len(plan.needed), 'run')} needed, {plan.there} already there")
    able = plan if request.dry_run else _with_data(plan, load, request)
    if able.missing and request.shown:
        request.say(_how_long(able, load, hardware, request))
    if not request.dry_run:
        run_missing(able, load, hardware, out, request.ways, show=request.shown)
        paths = write_files(chosen, out)
    if request.as_json:
        typer.echo(_json(chosen, plan, out))
    elif request.shown and not request.dry_run:
        show(chosen, out, small=request.scale == "small")
        for line in map(str, paths) if len(chosen) == 1 else _briefly(paths, out):
            request.say(line)


def _with_data(plan: Plan, load: Load, request: Request) -> Plan:
    """What can be run with the datasets that are there; the rest is named, and left out."""
    absent: dict[str, OSError] = {}
    for name in sorted({name for one in plan.missing for name in needs(one)}):
        try:
            load(Spec(dataset=name))
        except FileNotFoundError as error:
            absent[name] = error
    left = [one for one in plan.missing if not needs(one) & set(absent)]
    if absent and not left and not plan.there:
        raise next(iter(absent.values()))
    for name, why in absent.items():
        request.say(f"without what needs {name}: {why}")
    return Plan(plan.needed, left)


def run_missing(
    plan: Plan, load: Load, hardware: Hardware, out: Path, ways: Ways, *, show: bool
) -> None:
    """Run what is missing; what takes a part from another run comes after it."""
    if plan.missing:
        check_all(_one_of_each_kind(plan.missing), load, hardware)
        out.mkdir(parents=True, exist_ok=True)
    for part in rounds(plan.missing):
        runs = read_runs(out)
        specs = [to_spec(one, out, runs) for one in part]
        run_with_progress(specs, load, hardware, out, ways, show=show)


def write_files(chosen: Sequence[Experiment], out: Path) -> list[Path]:
    """What the report makes of each experiment: tables and figures as files."""
    results = list(read_runs(out).values())
    return [path for one in chosen for path in render(one, results, out / "tables")]


def show(chosen: Sequence[Experiment], out: Path, *, small: bool) -> None:
    """Each table in the terminal."""
    results = list(read_runs(out).values())
    console = wide_console()
    for experiment in chosen:
        show_tables(experiment, results, console, small=small)
    typer.echo(f"{count(len(results), 'result')} in {out}")


def _briefly(paths: Sequence[Path], out: Path) -> list[str]:
    page = f"for all in one page: dualcba report {out}"
    return [f"{count(len(paths), 'file')} of tables and figures in {out / 'tables'}", page]


def _json(chosen: Sequence[Experiment], plan: Plan, out: Path) -> str:
    results = list(read_runs(out).values())
    entries = {one.name: as_data(one, results) for one in chosen}
    counts = {"needed": len(plan.needed), "there": plan.there, "missing": len(plan.missing)}
    return json.dumps({"runs": counts, "experiments": entries})


def _how_long(plan: Plan, load: Load, hardware: Hardware, request: Request) -> str:
    """One line on the time that the rest takes; a dry run does without data."""
    specs = [_alone(one) for one in plan.missing]
    try:
        told = estimate(specs, list(read_runs(request.out).values()), load, hardware)
    except OSError as error:
        if not request.dry_run:
            raise
        return f"{count(len(specs), 'run')} to do; how long they take is not known: {error}"
    sources = [f"{count(told.finished, 'run')} from finished ones of the same kind"] * (
        told.finished > 0
    )
    sources += [f"{count(told.timed, 'run')} from a few timed steps"] * (told.timed > 0)
    ways = request.ways
    jobs = process_count(ways.jobs, len(specs), hardware, abreast=ways.abreast)
    length, number = in_words(told.seconds / jobs), "one" if jobs == 1 else str(jobs)
    return (
        f"{count(len(specs), 'run')} to do, about {length} here {number} at a time "
        f"({', '.join(sources)})"
    )


def _alone(one: Wanted) -> Spec:
    """The spec as if it took nothing from elsewhere, which costs the same."""
    return Spec(**{k: v for k, v in one.items() if k != "adaptor" or donor(one) is None})


def _one_of_each_kind(missing: Sequence[Wanted]) -> list[Spec]:
    kinds: dict[tuple[Any, ...], Spec] = {}
    for one in missing:
        spec = _alone(one)
        kind = (spec.dataset, spec.network, spec.method, spec.setting, spec.norm)
        kinds.setdefault((*kind, one.get("adaptor") == "pretrained"), spec)
    return list(kinds.values())
