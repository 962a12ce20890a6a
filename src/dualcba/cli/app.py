"""The commands: `dualcba run`, `resume`, `reproduce`, `report`, `learn`, `ask`, `bench`, `list`,
`data`, `runs`, `watch`, `doctor`.

Only what `--help` needs is imported here; each command imports the rest when it is called.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dualcba import __version__
from dualcba.cli.failures import FailedRunsError, InterruptedRunsError, one_line, out_of_memory
from dualcba.cli.output import fail, note, replace_what_cannot_be_encoded
from dualcba.cli.parameters import GroupedCommand, takes
from dualcba.options import (
    BenchCommand,
    LearnCommand,
    ReproduceCommand,
    ResumeCommand,
    RunCommand,
)

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Online continual learning with Dual Continual Bias Adaptors.",
)
data_app = typer.Typer(no_args_is_help=True, help="Download and check datasets.")
app.add_typer(data_app, name="data")
runs_app = typer.Typer(no_args_is_help=True, help="List, show, compare and remove runs.")
app.add_typer(runs_app, name="runs")

INTERRUPTED = 130  # the exit code of a shell for Ctrl-C
KEPT = "complete runs are kept"
WITH_RUNS = ("run", "resume", "reproduce")
"""Commands that make runs."""

Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
Quiet = Annotated[bool, typer.Option("--quiet", help="do not print progress")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="folder of the datasets; by default $DUALCBA_DATA, else ./data"),
]

RunFolders = Annotated[list[Path] | None, typer.Argument(help="folders of runs; by default ./runs")]
RunFolder = Annotated[Path, typer.Argument(help="the folder of a run")]


class Listing(StrEnum):
    """What can be listed."""

    methods = "methods"
    datasets = "datasets"
    settings = "settings"
    networks = "networks"
    experiments = "experiments"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dualcba {__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Online continual learning with Dual Continual Bias Adaptors."""


@app.command(cls=GroupedCommand)
@takes(RunCommand)
def run(
    given: dict[str, Any],
    file: Annotated[
        Path | None, typer.Argument(help="a TOML file with any of the options below")
    ] = None,
) -> None:
    """Train methods on a stream of data and print their scores.

    \b
    Example, each method with three seeds:
      dualcba run --dataset digits --method er,er-dual-cba --seeds 3 --out runs/first

    Each run makes one pass over the stream, task after task, and writes its scores to a folder
    below --out, which `dualcba resume`, `report` and `runs` read. Without options it runs a
    demonstration: ER, alone and with three bias adaptors, on handwritten digits, 5 seeds.
    """
    from dualcba.cli.run import run_command

    run_command(given, file)


@app.command(cls=GroupedCommand)
@takes(ResumeCommand)
def resume(
    given: dict[str, Any],
    out: Annotated[Path, typer.Argument(help="the --out of an earlier `dualcba run`")],
) -> None:
    """Finish an interrupted `dualcba run`.

    Makes the runs that have no result yet, and prints the table of all runs. Example: dualcba
    resume runs/first
    """
    from dualcba.cli.run import resume_command

    resume_command(given, out)


@app.command(cls=GroupedCommand)
@takes(ReproduceCommand)
def reproduce(
    given: dict[str, Any],
    name: Annotated[
        str,
        typer.Argument(
            help="a name of `dualcba list experiments`, all, or a TOML file with a table of your "
            "own"
        ),
    ],
) -> None:
    """Run a table or figure of the paper, or a table of your own.

    Makes the missing runs and shows the results beside the paper's values. Example, minutes on a
    CPU: dualcba reproduce main --scale small
    """
    from dualcba.cli.reproduce import reproduce_command

    reproduce_command(name, given)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="one or more folders of results")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="the file to write; by default report.html in the folder of results, or in the "
            "current folder if there are several"
        ),
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option(help="further scores, such as learning_acc; repeatable")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="methods to compare in pairs, such as er-cba,er-dual-cba; by default all; "
            "repeatable"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML report on one or more folders of results."""
    from dualcba.report import write_report

    asked, methods = _words("score", score), _words("compare", compare)
    path = write_report(*folders, to=out, asked=asked, compare=methods, tell=note)
    typer.echo(json.dumps({"report": str(path)}) if as_json else path)


@app.command(cls=GroupedCommand)
@takes(LearnCommand)
def learn(
    given: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="folder with one subfolder of images per class")],
) -> None:
    """Train an image classifier on a folder of images that grows.

    \b
    Example, for photos/cat/1.jpg, photos/dog/1.jpg and so on:
      dualcba learn photos --model runs/photos
      dualcba ask new.jpg --model runs/photos

    The folder has one subfolder of images per class. Images may be added while the command runs; a
    new subfolder is a new class. The command trains on each image once, saves the model regularly
    and shows its accuracy on images before it trains on them. Ctrl-C stops it; the same command
    continues. When it stops, it prints a table with the accuracy of each class and writes
    report.html to the model's folder.
    """
    from dualcba.cli.learn import learn_command

    learn_command(given, folder)


@app.command()
def ask(
    images: Annotated[list[Path], typer.Argument(help="one or more image files")],
    model: Annotated[
        Path, typer.Option(help="folder of the model: the --model of `dualcba learn`")
    ] = Path("runs/model"),
    top: Annotated[int, typer.Option(help="number of classes printed per image", min=1)] = 3,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", help="Python file that registers the method of the model"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Classify images with a model of `dualcba learn`.

    Prints a line per image: its most likely classes, each with its probability in percent. Reads
    the model as it was last saved; `dualcba learn` may still be running.
    """
    from dualcba.cli.learn import ask_command

    ask_command(images, model, top, imports or [], as_json=as_json)


@app.command(cls=GroupedCommand)
@takes(BenchCommand)
def bench(given: dict[str, Any]) -> None:
    """Measure the time of a training step against other loops.

    Trains methods with dualcba and with two loops in plain PyTorch, in turns, on the same synthetic
    images. Prints a table with a row per method and loop: the time of a step relative to dualcba,
    samples per second, the time to evaluate an image, peak memory and the time of the first step.
    Accuracy is not measured.
    """
    from dualcba.bench import bench as measure

    options = BenchCommand(**given)
    found = measure(
        network=options.network, device=options.device, methods=options.method,
        against=options.against, steps=options.steps, rounds=options.rounds, memory=options.memory,
        out=options.out, show=options.verbose,
    )  # fmt: skip
    if options.json:
        typer.echo(json.dumps(found))


@app.command()
def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check this machine: Python, torch, GPUs, data, disk, extras.

    Prints a line for each. Exits with 1 if a requirement of runs is missing.
    """
    from dualcba.cli.doctor import doctor_command

    doctor_command(data_dir, as_json=as_json)


@app.command()
def watch(
    path: Annotated[
        Path, typer.Argument(help="a folder of runs, or the folder or file of a monitor")
    ] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="show the numbers once and exit")] = False,
    as_json: Json = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="print in the Prometheus text format")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="serve the numbers for Prometheus on this port", min=0, max=65535),
    ] = None,
) -> None:
    """Show the progress of runs and learners.

    Shows accuracy, classes, memory and correction of runs made with `dualcba run --watch` and of
    monitors that write to a file, until all have ended.
    """
    from dualcba.cli.watch import watch_command

    watch_command(path, once=once, as_json=as_json, prometheus=prometheus, port=port)


@app.command("list")
def list_(
    what: Annotated[Listing, typer.Argument(help="what to list")], as_json: Json = False
) -> None:
    """List methods, datasets, settings, networks or experiments."""
    from dualcba.cli.listing import names

    found = names(what.value)
    if as_json:
        typer.echo(json.dumps([{"name": name, "title": title} for name, title in found.items()]))
        return
    width = max(map(len, found))
    titled = what in (Listing.settings, Listing.experiments)
    for name, title in found.items():
        typer.echo(f"{name:<{width}}  {title}" if titled else name)


@data_app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="a name of `dualcba list datasets`")],
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Download a dataset from its official address and unpack it, unless it is there."""
    from dualcba.data import data_dir as find_data
    from dualcba.data.download.fetch import fetch as download

    typer.echo(download(name, find_data(data_dir), show=False if quiet else None))


@data_app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="a name, a folder of images or an .npz file")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check a dataset on this machine.

    Checks that all files can be read, and that each class has training and test samples. For a
    published dataset it also compares samples and labels with a known digest, or only counts and
    shapes if no digest is known.
    """
    from dataclasses import asdict

    from dualcba.data import data_dir as find_data
    from dualcba.data.download.fetch import check as check_dataset

    found = check_dataset(name, find_data(data_dir))
    typer.echo(json.dumps(asdict(found)) if as_json else found)


@runs_app.command("ls")
def runs_ls(
    folders: RunFolders = None,
    as_json: Json = False,
) -> None:
    """List the runs below folders and their status: complete, in progress, not run, damaged."""
    from dualcba.cli.runs import list_runs

    list_runs(folders or [Path("runs")], as_json=as_json)


@runs_app.command("show")
def runs_show(run: RunFolder, as_json: Json = False) -> None:
    """Show one run: its command, scores, times, versions and files."""
    from dualcba.cli.runs import show_run

    show_run(run, as_json=as_json)


@runs_app.command("diff")
def runs_diff(first: RunFolder, second: RunFolder, as_json: Json = False) -> None:
    """Show the options, versions and scores in which two runs differ."""
    from dualcba.cli.runs import diff_runs

    diff_runs(first, second, as_json=as_json)


@runs_app.command("compare")
def runs_compare(
    folders: RunFolders = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="methods to compare, such as er-cba,er-dual-cba; by default all; repeatable"
        ),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(help="scores to compare, such as acc,fm; by default acc; repeatable"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare methods in pairs on common seeds.

    Prints the difference with its 95 % interval, and p of a paired t test.
    """
    from dualcba.cli.runs import compare_methods

    methods, scores = _words("method", method), _words("score", score) or ["acc"]
    compare_methods(folders or [Path("runs")], methods, scores, as_json=as_json)


@runs_app.command("rm")
def runs_rm(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    as_json: Json = False,
) -> None:
    """Remove runs, also from the plan, so that `resume` does not repeat them."""
    from dualcba.cli.runs import remove_runs

    remove_runs(runs, yes=yes, as_json=as_json)


@runs_app.command("curves")
def runs_curves(folder: Annotated[Path, typer.Argument(help="a folder of runs")]) -> None:
    """Write `curves.parquet` for results of earlier versions, which lack it."""
    from dualcba.cli.runs import add_curves

    add_curves(folder)


def _words(name: str, given: list[str] | None) -> list[str]:
    """Return the words of a repeatable option; each value may have several, separated by commas."""
    from dualcba.options.values import words

    return words(name, ",".join(given)) if given else []


# ---------------------------------------------------------------------- errors


def main() -> None:
    """Run the command line; print an error of the input on one line and exit with code 2."""
    replace_what_cannot_be_encoded()
    code: object = 0
    received: list[int] = []
    kept = KEPT if sys.argv[1:] and sys.argv[1] in WITH_RUNS else ""
    try:
        with _ending_signals(received):
            code = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except InterruptedRunsError as stop:
        code, kept = INTERRUPTED, str(stop)
    except Exception as error:
        if not received:  # else the signal may have caused the error, such as a closed terminal
            _fail(error)
    if received or code == INTERRUPTED:
        with suppress(OSError):  # the terminal may be closed
            note("; ".join(filter(None, ["interrupted", kept])))
        sys.exit(128 + received[0] if received else INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _ending_signals(received: list[int]) -> Iterator[None]:
    """Raise a KeyboardInterrupt on SIGTERM and SIGHUP, and add the signal to `received`.

    A signal that is ignored, such as SIGHUP under nohup, stays ignored.
    """

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    found = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    main_thread = threading.current_thread() is threading.main_thread()
    taken = [n for n in found if n and main_thread and signal.getsignal(n) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _fail(error: Exception) -> None:
    """Print errors of input, memory and files on one line and exit; raise others."""
    if isinstance(error, FloatingPointError | ChildProcessError | FailedRunsError):
        fail(error, 1)
    line = one_line(error)
    if line is not None:
        full = out_of_memory(error)
        fail(f"{line}; {KEPT}" if full else line, 1 if full else 2)
    message = getattr(error, "format_message", None)  # a usage error
    if message is None:
        raise error
    text = message() + _given_value(error)
    shown = text if "Usage:" in text else " ".join(text.split())
    fail(shown, getattr(error, "exit_code", 2))


def _given_value(error: Exception) -> str:
    """Return the rejected value of a usage error, unless its message has it."""
    for name in getattr(getattr(error, "param", None), "opts", ()):
        if name in sys.argv[:-1]:
            value = sys.argv[sys.argv.index(name) + 1]
            return "" if value in str(error) else f" (given: {value!r})"
    return ""
