"""`dualcba runs`: list, show, compare and remove the runs of a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from dualcba.cli.output import note
from dualcba.experiments.curves import CURVES, write_curves
from dualcba.experiments.runs import (
    DAMAGED,
    IN_PROGRESS,
    difference,
    open_run,
    removable,
    remove_run,
    stored_runs,
)
from dualcba.experiments.store import contradictions, distinct, find_runs
from dualcba.report.commands import command
from dualcba.report.names import check_scores, count
from dualcba.report.pairs import chosen, pairs, unpaired
from dualcba.report.results import collections
from dualcba.report.tables.runs import difference_tables, score_table, store_layouts
from dualcba.report.tables.scores import pair_table
from dualcba.report.tables.terminal import fitting, rich_table, wide_console


def list_runs(folders: Sequence[Path], *, as_json: bool) -> None:
    """Print the runs below folders; name damaged files."""
    found = stored_runs(folders)
    if as_json:
        typer.echo(json.dumps([run.to_dict() for run in found]))
        return
    console = wide_console()
    for table in fitting(store_layouts(found), console) if found else ():
        console.print(table)
    for run in found:
        if run.status == DAMAGED:
            note(str(run.problem))
    complete = sum(run.result is not None and run.result.complete for run in found)
    going = sum(run.status == IN_PROGRESS for run in found)
    also = f", {going} in progress" if going else ""
    typer.echo(f"{count(len(found), 'run')}, {complete} complete{also}")


def show_run(path: Path, *, as_json: bool) -> None:
    """Print one run: the command that repeats it, its scores, times, versions and files."""
    folder, result = open_run(path)
    if as_json:
        typer.echo(json.dumps({"run": str(folder), **result.to_dict()}))
        return
    typer.echo(command(result.fields, [result.seed]))
    wide_console().print(rich_table(score_table(result)))
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    files = ", ".join(sorted(p.name for p in folder.iterdir()))
    about = {"time": seconds, "data": result.data, "versions": versions, "files": files}
    for name, text in about.items():
        if text:
            typer.echo(f"{name:<9} {text}")


def diff_runs(first: Path, second: Path, *, as_json: bool) -> None:
    """Print the options, versions and scores in which two runs differ."""
    found = difference(open_run(first)[1], open_run(second)[1])
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    console = wide_console()
    for table in difference_tables(found):
        console.print(rich_table(table))
    if found.equal:
        typer.echo("all scores, accuracies and curves are equal")


def compare_methods(
    folders: Sequence[Path], methods: Sequence[str], scores: Sequence[str], *, as_json: bool
) -> None:
    """Print the differences of every two methods on common seeds, a table per group and score."""
    check_scores(scores)
    runs = find_runs(*folders)
    groups = chosen(collections(distinct(runs.values())), methods)
    found = [pairs(group.served, score) for group in groups for score in scores]
    if not any(found):
        where, wanted = ", ".join(map(str, folders)), f"two with values of {', '.join(scores)}"
        shared = "dataset, setting, buffer, protocol and a seed"
        raise ValueError(f"{where} has no two methods that share {shared}, expected {wanted}")
    every = [pair for part in found for pair in part]
    lacking = [name for name in scores if name not in {pair.score for pair in every}]
    unmeasured = [f"no two of the compared methods have values of {name}" for name in lacking]
    for line in (*contradictions(runs), *unpaired(groups, methods, every), *unmeasured):
        note(line)
    if as_json:
        typer.echo(json.dumps([asdict(pair) for pair in every]))
        return
    console = wide_console()
    for part in filter(None, found):
        console.print(rich_table(pair_table(part, part[0].column)))


def remove_runs(paths: Sequence[Path], *, yes: bool, as_json: bool) -> None:
    """Remove runs after a confirmation, unless `yes`; remove none if a folder is not a run."""
    folders = removable(paths)
    if not yes:
        if not sys.stdin.isatty():
            raise ValueError(f"{count(len(folders), 'run')} to remove, expected --yes")
        names = "\n".join(map(str, folders))
        typer.confirm(f"{names}\nRemove {count(len(folders), 'run')}?", abort=True, err=True)
    for folder in folders:
        remove_run(folder)
    removed = [str(folder) for folder in folders]
    typer.echo(json.dumps(removed) if as_json else f"{count(len(removed), 'run')} removed")


def add_curves(folder: Path) -> None:
    """Write the curves of complete runs that lack the file, made by earlier versions."""
    runs = [run for run in stored_runs([folder]) if run.result is not None]
    lacking = [run for run in runs if not (run.folder / CURVES).exists()]
    for run in lacking:
        assert run.result is not None
        write_curves(run.folder / CURVES, run.result.to_dict())
    typer.echo(f"{count(len(lacking), 'file')} written, {len(runs) - len(lacking)} already there")
