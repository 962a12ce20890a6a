"""`dualcba reproduce`: make the missing runs of a table, and show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dualcba.cli.failures import FailedRunsError
from dualcba.cli.progress import run_with_progress
from dualcba.cli.run import checked_on, usable_here
from dualcba.experiments import Load, Loader, Spec, check_all
from dualcba.experiments.eta import estimate, in_words
from dualcba.experiments.paper.catalogue import Experiment, named
from dualcba.experiments.paper.coverage import Coverage, Wanted, cover, ready_spec, rounds
from dualcba.experiments.paper.selection import choose, choose_own
from dualcba.experiments.pool import process_count
from dualcba.experiments.purpose import AskedTable, add_tables
from dualcba.experiments.result import Result
from dualcba.experiments.spec import read_toml
from dualcba.experiments.store import check_folder, known_data, make_folder, read_results
from dualcba.methods.files import import_methods
from dualcba.options import ReproduceCommand, definitions
from dualcba.report import render
from dualcba.report.comparison import serve
from dualcba.report.data import experiment_data
from dualcba.report.names import count
from dualcba.report.own_tables import is_file, read_table
from dualcba.report.tables.terminal import show, wide_console

AGAIN = "run the same command again to continue"


def reproduce_command(name: str, given: Mapping[str, Any]) -> None:
    """Make the missing runs of tables, after an estimate of their time; show and write them."""
    asked = _asked(name, given)
    chosen, options = asked.chosen, usable_here(asked.options)
    out = _folder(options)
    check_folder(out)
    results = read_results(out)
    load = Loader(options.data_dir, known_data(out, results))
    coverage = cover(chosen, options.seeds, results)
    needed = count(len(coverage.needed), "run")
    _say(options, f"{needed} needed, {coverage.there} already there")
    if more := _further_seeds(chosen, list(results.values()), options.seeds):
        _say(options, more)
    able = coverage if options.dry_run else _with_data(coverage, load, options)
    if able.missing and options.verbose:
        _say(options, _how_long(able, load, options))
    paths: list[Path] = []
    failed: list[FailedRunsError] = []
    if not options.dry_run:
        failed = run_missing(able, load, options, out, asked.tables)
        paths = write_files(asked.whole, out)
    _print(chosen, coverage, paths, options)
    if failed:
        raise failed[0]


@dataclass(frozen=True)
class Asked:
    """The tables and options of a call."""

    chosen: list[Experiment]
    """The tables to run and show, restricted to the selected rows and columns."""

    whole: list[Experiment]
    """The whole tables, which are written to files with all results so far."""

    tables: list[AskedTable]
    """The tables as recorded in the folder."""

    options: ReproduceCommand


def _asked(name: str, given: Mapping[str, Any]) -> Asked:
    """Return the tables and options of a call."""
    own_files = read_toml(Path(name)).get("imports", []) if is_file(name) else []
    imports = definitions(ReproduceCommand)["imports"]
    import_methods([*imports.check(own_files), *imports.check(given.get("imports", []))])
    if not is_file(name):
        options = ReproduceCommand(**given)
        part = options.dataset, options.scale, options.column, options.row
        chosen = choose(named(name), *part)
        names = [one.name for one in chosen]
        whole = choose([e for e in named(name) if e.name in names], None, options.scale)
        return Asked(chosen, whole, [AskedTable(e.name, options.scale) for e in chosen], options)
    own = read_table(Path(name))
    seeds = {} if own.seeds is None else {"seeds": own.seeds}
    options = ReproduceCommand(**{"out": Path("runs") / Path(name).stem, **seeds, **given})
    part = options.dataset, options.scale, options.column, options.row
    chosen = choose_own(own.experiment, *part)
    tables = [AskedTable(own.experiment.name, toml=own.toml)]
    return Asked(chosen, [own.experiment], tables, options)


def _folder(options: ReproduceCommand) -> Path:
    small = "" if options.scale == "paper" else f"-{options.scale}"
    return options.out or Path(f"runs/reproduce{small}")


def _further_seeds(chosen: Sequence[Experiment], results: Sequence[Result], asked: int) -> str:
    """Return a line on results of further seeds, which the tables include; empty if there are none.

    Results are never left out of a table, or its files would lose measured values.
    """
    served = [s for one in chosen for s in serve(one, results)]
    more = sorted({r.seed for s in served for r in s.results if r.seed >= asked})
    named = ", ".join(map(str, more))
    return f"the tables also include results of the seeds {named}" if more else ""


def _say(options: ReproduceCommand, line: str) -> None:
    if options.verbose:
        typer.echo(line)


def _with_data(coverage: Coverage, load: Load, options: ReproduceCommand) -> Coverage:
    """Leave out runs whose datasets are missing, with a line on each dataset."""
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
        _say(options, f"left out, since {name} is needed: {why}")
    return Coverage(coverage.needed, left)


def run_missing(
    coverage: Coverage,
    load: Load,
    options: ReproduceCommand,
    out: Path,
    asked: Sequence[AskedTable],
) -> list[FailedRunsError]:
    """Make the missing runs; runs that load a part from another run come after it.

    Records in the folder which tables the runs are for. If runs fail, those that do not depend on
    them continue. Returns the errors.
    """
    failed: list[FailedRunsError] = []
    if coverage.missing:
        check_all(_one_of_each_kind(coverage.missing), load, checked_on(options))
    make_folder(out)
    add_tables(out, asked)
    for part in rounds(coverage.missing):
        runs = read_results(out)
        try:
            specs = [ready_spec(one, out, runs) for one in part]
            run_with_progress(specs, load, options, out, show=options.verbose, again=AGAIN)
        except FailedRunsError as error:
            failed.append(error)
        except FileNotFoundError:  # the class-agnostic part of a failed run
            if not failed:
                raise
    return failed


def _one_of_each_kind(missing: Sequence[Wanted]) -> list[Spec]:
    kinds: dict[tuple[Any, ...], Spec] = {}
    for one in missing:
        spec = one.spec
        kind = (spec.dataset, spec.network, spec.method, spec.setting, spec.norm)
        kinds.setdefault((*kind, spec.agnostic_from), spec)
    return list(kinds.values())


def _how_long(coverage: Coverage, load: Load, options: ReproduceCommand) -> str:
    """Return a line on the time of the missing runs; a dry run works without the data."""
    specs = [one.spec for one in coverage.missing]  # loading a part from another run takes no time
    if options.on != "local":  # the other machines may be faster or slower
        todo = count(len(specs), "run")
        return f"{todo} to do on {options.on}; the time left is shown as they run"
    done = [result.to_dict() for result in _results(_folder(options))]
    try:
        time = estimate(specs, done, load, options)
    except OSError as error:
        if not options.dry_run:
            raise
        return f"{count(len(specs), 'run')} to do; how long they take is not known: {error}"
    finished = f"{count(time.finished, 'run')} from finished runs of the same kind"
    timed = f"{count(time.timed, 'run')} from a few timed steps"
    sources = [finished] * (time.finished > 0) + [timed] * (time.timed > 0)
    jobs = process_count(options.jobs, len(specs), options, abreast=options.abreast)
    length, number = in_words(time.seconds / jobs), "one" if jobs == 1 else str(jobs)
    return (
        f"{count(len(specs), 'run')} to do, about {length} on this machine, {number} at a time "
        f"(estimated: {', '.join(sources)}); the estimate is updated as they run"
    )


def _results(out: Path) -> list[Result]:
    return list(read_results(out).values())


def write_files(whole: Sequence[Experiment], out: Path) -> list[Path]:
    """Write the tables and figures of each experiment that has results."""
    results = _results(out)
    there = [one for one in whole if any(s.results for s in serve(one, results))]
    return [path for one in there for path in render(one, results, out / "tables")]


# ---------------------------------------------------------------------- output


def _print(
    chosen: Sequence[Experiment],
    coverage: Coverage,
    paths: Sequence[Path],
    options: ReproduceCommand,
) -> None:
    out = _folder(options)
    if options.json:
        typer.echo(_json(chosen, coverage, out))
    elif options.verbose and not options.dry_run:
        show_tables(chosen, options)
        for line in map(str, paths) if len(chosen) == 1 else _briefly(paths, out):
            typer.echo(line)


def show_tables(chosen: Sequence[Experiment], options: ReproduceCommand) -> None:
    """Print the tables of each experiment."""
    results, console = _results(_folder(options)), wide_console()
    for experiment in chosen:
        show(experiment, results, console, small=options.scale == "small")
    typer.echo(f"{count(len(results), 'result')} in {_folder(options)}")


def _briefly(paths: Sequence[Path], out: Path) -> list[str]:
    page = f"for one page with all of them: dualcba report {out}"
    return [f"{count(len(paths), 'file')} of tables and figures in {out / 'tables'}", page]


def _json(chosen: Sequence[Experiment], coverage: Coverage, out: Path) -> str:
    results = _results(out)
    entries = {one.name: experiment_data(one, results) for one in chosen}
    needed, missing = len(coverage.needed), len(coverage.missing)
    counts = {"needed": needed, "there": coverage.there, "missing": missing}
    return json.dumps({"runs": counts, "experiments": entries})
