"""`dualcba run` and `dualcba resume`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from dualcba.cli.failures import FailedRunsError
from dualcba.cli.output import note
from dualcba.cli.progress import run_with_progress
from dualcba.data import DATASETS, Dataset
from dualcba.data.augmentation import is_colour
from dualcba.engine import resolve_device
from dualcba.errors import unknown
from dualcba.experiments import (
    Loader,
    Result,
    Spec,
    check_all,
    check_free,
    known_data,
    make_specs,
    matches,
    read_plan,
    read_results,
    read_toml,
    write_plan,
)
from dualcba.experiments.checkpoints import remove_checkpoints
from dualcba.experiments.fitting_network import fitting_network
from dualcba.experiments.purpose import AskedSweep, Purpose, add_sweep, read_purpose
from dualcba.experiments.remote import check_place
from dualcba.experiments.spec import method_list
from dualcba.experiments.store import run_folder
from dualcba.experiments.sweep import Sweep, read_sweep, sweep_specs
from dualcba.methods.files import import_methods
from dualcba.options import (
    RECIPES,
    WITHOUT_COLOUR,
    ExecutionOptions,
    Hardware,
    OutputOptions,
    ResumeCommand,
    RunCommand,
    RunOptions,
    definitions,
)
from dualcba.options.values import mapping
from dualcba.report import summary
from dualcba.report.names import check_scores, count
from dualcba.report.sweeps import Trial, best_data, best_lines, sweep_layouts, trials
from dualcba.report.tables.summary import legend
from dualcba.report.tables.terminal import fitting, wide_console
from dualcba.report.trackers import check_installed

Options = TypeVar("Options", bound=ExecutionOptions)

DEMO = {
    "dataset": "digits",
    "method": ["er", "er-cba", "er-dual-cba", "er-balanced-cba"],
    "seeds": 5,
}
"""The runs of `dualcba run` without options."""


def run_command(given: Mapping[str, Any], file: Path | None) -> None:
    """Run the specs of a TOML file and the command line; the latter takes precedence."""
    options = {**(read_toml(file) if file else {}), **given}
    for name in options:
        if name not in definitions(RunCommand):
            raise ValueError(unknown("option", name, definitions(RunCommand)))
    import_methods(definitions(RunCommand)["imports"].check(options.get("imports") or []))
    wanted = _only(options, RunOptions) | {k: v for k, v in options.items() if k == "seeds"}
    execution = ExecutionOptions(**_only(options, ExecutionOptions))
    output = OutputOptions(**_only(options, OutputOptions))
    scores = _asked(options.get("score") or [])
    sweep = read_sweep(mapping("sweep", options["sweep"])) if options.get("sweep") else None
    specs = sweep_specs(sweep, wanted) if sweep else make_specs(wanted or DEMO)
    out = _out_folder(options.get("out"), file, specs[0] if wanted or sweep else None)
    check_free(out, specs)
    execution = usable_here(execution)
    load = Loader(execution.data_dir, known_data(out, read_results(out)))
    if fitting := _options_for_own_data(specs, wanted, sweep, load, execution):
        wanted |= fitting
        specs = sweep_specs(sweep, wanted) if sweep else make_specs(wanted)
        check_free(out, specs)
    check_all(specs, load, checked_on(execution))
    _note_unused_classes(specs[0].tasks, load(specs[0]).num_classes)
    write_plan(out, specs, load.origins)
    if sweep is not None:
        add_sweep(out, sweep, [spec.name for spec in specs])
    with _printing_results_on_failure(out, output, scores):
        results = run_with_progress(specs, load, execution, out, show=output.verbose)
    _print(results, out, output, scores)


def _options_for_own_data(
    specs: Sequence[Spec],
    wanted: Mapping[str, Any],
    sweep: Sweep | None,
    load: Loader,
    execution: ExecutionOptions,
) -> dict[str, Any]:
    """Return options that suit the user's own data, unless they were given; print notes on them."""
    varied = set(sweep.varied if sweep else ())
    if specs[0].dataset in DATASETS or "dataset" in varied:
        return {}
    given = varied.union(name for name, value in wanted.items() if value is not None)
    data = load(specs[0])
    found = {} if "network" in given else _network(specs[0], data, execution)
    if not is_colour(data.input_shape, data.train_x.dtype) and "protocol" not in given:
        found |= _without_colour(wanted, given)
    return found


def _network(spec: Spec, data: Dataset, execution: ExecutionOptions) -> dict[str, Any]:
    network, why = fitting_network(data, resolve_device(execution.device))
    if network == spec.network:
        return {}
    note(f"the network is {network}: {why}; --network {spec.network} overrides this")
    return {"network": network}


def _without_colour(wanted: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    """Return options to override in a recipe if the samples are not colour images."""
    methods = method_list(wanted["method"]) if wanted.get("method") else []
    recipes = [name for name in methods if name in RECIPES]
    found = {name: value for name, value in WITHOUT_COLOUR.items() if name not in given}
    if not recipes or not found:
        return {}
    options = ", ".join(f"{name} = {value}" for name, value in found.items())
    note(f"the samples are not colour images, so {recipes[0]} uses {options}")
    return found


def _only(options: Mapping[str, Any], cls: type) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in definitions(cls)}


def _out_folder(given: Any, file: Path | None, first: Spec | None) -> Path:
    """Return the given folder for the results, or a new one below ./runs."""
    if given is not None:
        return Path(definitions(RunCommand)["out"].check(given))
    if first is None:
        return Path("runs/demo")
    if file is not None:
        return Path("runs") / file.stem
    now = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(first.dataset).stem}-{first.setting}-{now}"


def usable_here(options: Options) -> Options:
    """Return the options for this machine; raise a ValueError if an extra is not installed.

    --abreast has no effect on a CPU and is reset, with a note.
    """
    check_installed(options.track)
    check_place(options)
    if (
        options.on != "local"
        or options.abreast == 1
        or resolve_device(options.device).type != "cpu"
    ):
        return options
    note("--abreast has no effect on a CPU; --jobs sets the number of processes")
    return replace(options, abreast=1)


def checked_on(options: ExecutionOptions) -> Hardware:
    """Return the hardware for checks before the first run: a CPU if runs are on other machines."""
    return options if options.on == "local" else Hardware(device="cpu")


def _note_unused_classes(tasks: Any, classes: int) -> None:
    """Print a note if the tasks leave classes out."""
    sizes = isinstance(tasks, list) and all(isinstance(n, int) for n in tasks)
    if sizes and sum(tasks) < classes:
        note(f"the tasks have {sum(tasks)} of the {classes} classes; the others are left out")


def _asked(given: Any) -> list[str]:
    """Return the names of further scores in the table; raise a ValueError if one is unknown."""
    names: list[str] = definitions(RunCommand)["score"].check(given)
    check_scores(names)
    return names


def _print(
    results: Sequence[Result], out: Path, output: OutputOptions, scores: Sequence[str]
) -> None:
    """Print the results of a call: a table per sweep, and a table of the other runs."""
    sweeps, others = _by_sweep(results, out)
    if output.json:
        listed = [result.to_dict() for result in results]
        best = [one for asked, found in sweeps for one in best_data(found, asked.sweep)]
        typer.echo(json.dumps({"best": best, "results": listed} if sweeps else listed))
    elif not output.quiet:
        console = wide_console()
        for table in summary(others, console, scores) if others else ():
            console.print(table)
        if others:
            console.print(legend(others, scores), highlight=False)
        for asked, found in sweeps:
            for table in fitting(sweep_layouts(found, asked.sweep, len(asked.runs)), console):
                console.print(table)
            for line in best_lines(found, asked.sweep):
                typer.echo(line)
        typer.echo(f"{count(len(results), 'result')} in {out}")


@contextmanager
def _printing_results_on_failure(
    out: Path, output: OutputOptions, scores: Sequence[str]
) -> Iterator[None]:
    """Print the results of successful runs before the error if some runs fail."""
    try:
        yield
    except FailedRunsError as error:
        if error.results:
            _print(error.results, out, output, scores)
        raise


def _by_sweep(
    results: Sequence[Result], out: Path
) -> tuple[list[tuple[AskedSweep, list[Trial]]], list[Result]]:
    """Return the sweeps of some results, each with all trials so far, and the other results.

    If a call has made only some runs of a sweep, the others are read from the folder.
    """
    asked = (read_purpose(out) or Purpose()).sweeps
    ours = {result.spec.name for result in results if isinstance(result.spec, Spec)}
    swept = {name for one in asked for name in one.runs}
    others = [r for r in results if not (isinstance(r.spec, Spec) and r.spec.name in swept)]
    named = {path.name: r for path, r in read_results(out).items()} if ours & swept else {}
    shown = [one for one in asked if ours.intersection(one.runs)]
    parts = [(one, [named[name] for name in one.runs if name in named]) for one in shown]
    return [(one, trials(found, one.sweep)) for one, found in parts if found], others


def resume_command(given: Mapping[str, Any], out: Path) -> None:
    """Run the specs of a folder's plan that have no result."""
    options = usable_here(ResumeCommand(**given))
    import_methods(options.imports)
    scores = _asked(options.score)
    specs, results = read_plan(out), read_results(out)
    complete = list(results.values())
    missing = [spec for spec in specs if not _results_of([spec], complete)]
    load = Loader(options.data_dir, known_data(out, results))
    check_all(missing, load, checked_on(options))
    if options.verbose:
        typer.echo(f"{len(specs) - len(missing)} of {len(specs)} runs are complete")
    for spec in specs:
        if spec not in missing:  # a killed process may have left checkpoints
            remove_checkpoints(run_folder(out, spec))
    if missing:
        with _printing_results_on_failure(out, options, scores):
            run_with_progress(missing, load, options, out, show=options.verbose)
    _print(_results_of(specs, list(read_results(out).values())), out, options, scores)


def _results_of(specs: list[Spec], results: list[Result]) -> list[Result]:
    """Return the result of each spec that has one."""
    found: list[Result] = []
    for spec in specs:
        of_seed = [r for r in results if r.seed == spec.seed]
        found += [r for r in of_seed if matches(r, spec)][:1]
    return found
