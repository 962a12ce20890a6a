"""The command line: `dualcba run`, `resume`, `reproduce`, `report`, `bench`, `list`, `data`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer

from dualcba.cli.progress import Ways, run_with_progress
from dualcba.cli.reproduce import Request
from dualcba.cli.reproduce import reproduce as reproduce_all
from dualcba.data import DATASETS
from dualcba.data import data_dir as find_data
from dualcba.data.download.fetch import check, fetch
from dualcba.errors import expected
from dualcba.experiments import (
    SETTINGS,
    Hardware,
    Loader,
    Result,
    Spec,
    check_all,
    check_free,
    experiments,
    fields,
    make_specs,
    matches,
    read_plan,
    read_results,
    read_toml,
    write_plan,
)
from dualcba.methods import method_names
from dualcba.report import summary, write_report
from dualcba.report.tables.terminal import wide_console

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Online continual learning with Dual Continual Bias Adaptors.",
)

DEMO = {"dataset": "digits", "method": ["er", "er-cba", "er-dual-cba"], "seeds": 5}


INTERRUPTED = 130  # as a shell says it
ON_CPU = "DefaultCPUAllocator: "  # a plain RuntimeError of torch's, where a CPU has no more memory


class Listing(StrEnum):
    """What can be listed."""

    methods = "methods"
    datasets = "datasets"
    settings = "settings"
    experiments = "experiments"


@app.command("list")
def list_(what: Annotated[Listing, typer.Argument(help="what to name")]) -> None:
    """Name the methods, datasets, settings or experiments that there are."""
    width = max(map(len, experiments()))
    names = {
        "methods": method_names(),
        "datasets": list(DATASETS),
        "settings": list(SETTINGS),
        "experiments": [f"{name:<{width}}  {e.title}" for name, e in experiments().items()],
    }
    typer.echo("\n".join(names[what.value]))


data_app = typer.Typer(no_args_is_help=True, help="Fetch and check datasets.")
app.add_typer(data_app, name="data")

DataDir = Annotated[Path | None, typer.Option(help="where datasets lie")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, no table")]
AsJson = Annotated[bool, typer.Option("--json", help="print the results as JSON")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda[:n]")]
Engine = Annotated[str, typer.Option(help="auto, eager or captured")]
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16")]
Abreast = Annotated[int, typer.Option(help="runs side by side on a GPU", min=1)]
Jobs = Annotated[int | None, typer.Option(help="processes on a CPU; by default its cores", min=1)]


@data_app.command("fetch")
def fetch_(
    name: Annotated[str, typer.Argument(help="a name of `dualcba list datasets`")],
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Download a dataset from its official address, once, and unpack it."""
    typer.echo(fetch(name, find_data(data_dir), show=False if quiet else None))


@data_app.command("check")
def check_(
    name: Annotated[str, typer.Argument(help="a name, a folder of images or an .npz")],
    data_dir: DataDir = None,
) -> None:
    """Verify the counts, shapes and labels of a dataset that is there."""
    typer.echo(check(name, find_data(data_dir)))


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="a TOML file with the options below")] = None,
    method: Annotated[str | None, typer.Option(help="one or more, with commas")] = None,
    dataset: Annotated[str | None, typer.Option(help="a name, a folder or an .npz")] = None,
    setting: Annotated[str | None, typer.Option(help="how the data arrive")] = None,
    buffer: Annotated[int | None, typer.Option(help="samples in the memory")] = None,
    seeds: Annotated[int | None, typer.Option(help="how many seeds, from --seed on")] = None,
    seed: Annotated[int | None, typer.Option(help="the first seed")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="number of equal tasks, or their sizes: 2,3,5")
    ] = None,
    class_order: Annotated[str | None, typer.Option(help="natural, shuffled or 3,1,2,…")] = None,
    epochs: Annotated[int | None, typer.Option(help="passes over each task")] = None,
    network: Annotated[str | None, typer.Option(help="resnet18, resnet18-slim or mlp")] = None,
    batch_size: Annotated[int | None, typer.Option(help="samples per step and draw")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate of the network")] = None,
    adaptor_lr: Annotated[float | None, typer.Option(help="learning rate of the adaptor")] = None,
    outer_every: Annotated[int | None, typer.Option(help="steps between outer updates")] = None,
    levels: Annotated[str | None, typer.Option(help="bi, joint or buffer")] = None,
    specific: Annotated[str | None, typer.Option(help="single, individual or none")] = None,
    agnostic: Annotated[bool | None, typer.Option(help="class-agnostic part")] = None,
    space: Annotated[str | None, typer.Option(help="logit or probability")] = None,
    divide: Annotated[bool | None, typer.Option(help="divide by the number of classes")] = None,
    width: Annotated[int | None, typer.Option(help="hidden units of the adaptor")] = None,
    agnostic_from: Annotated[
        str | None, typer.Option(help="class-agnostic part: pretrained or a file")
    ] = None,
    freeze_after: Annotated[
        int | None, typer.Option(help="tasks in which the class-agnostic part learns")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="in training: bn, cn or adab2n")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="of the method itself, as name=value; repeatable")
    ] = None,
    forward: Annotated[str | None, typer.Option(help="split or concat")] = None,
    ibn_augment: Annotated[bool | None, typer.Option(help="augment in the IBN pass")] = None,
    ibn_average: Annotated[str | None, typer.Option(help="cumulative or ema")] = None,
    seen_only: Annotated[bool | None, typer.Option(help="answer with classes seen")] = None,
    boundaries: Annotated[str | None, typer.Option(help="of tasks: given or inferred")] = None,
    labelled_batches: Annotated[str | None, typer.Option(help="semi: mixed or cycled")] = None,
    anytime: Annotated[
        str | None, typer.Option(help="scored between task ends: both, bn or ibn")
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="steps between scores; 0: task ends")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="also record: predictions,transitions,alignment")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the results")] = Path("runs/demo"),
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    jobs: Jobs = None,
    abreast: Abreast = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream: methods × seeds, one table. Without options: the embedded demonstration."""
    given = {k: v for k, v in locals().items() if k in ("seeds", *fields()) and v is not None}
    options = (read_toml(file) if file else {}) | given
    for field in ("tasks", "class_order"):
        if field in given:
            options[field] = _numbers(given[field])
    if option:
        options["method_options"] = dict(_pair(text) for text in option)
    options = options if options else dict(DEMO)
    if isinstance(options.get("method"), str):
        options["method"] = [m.strip() for m in options["method"].split(",")]
    specs = make_specs(options)
    check_free(out, specs)
    hardware = Hardware(device, engine, precision)
    load = Loader(data_dir)
    check_all(specs, load, hardware)
    _tell_left_out(specs[0].tasks, load(specs[0]).num_classes)
    write_plan(out, specs)
    show = not quiet and not as_json
    results = run_with_progress(specs, load, hardware, out, Ways(jobs, abreast), show=show)
    _tell([Result.from_dict(r) for r in results], out, quiet=quiet, as_json=as_json)


def _tell_left_out(tasks: Any, classes: int) -> None:
    """Sizes of tasks may leave classes out; nobody should find that out later."""
    if isinstance(tasks, list) and all(isinstance(n, int) for n in tasks) and sum(tasks) < classes:
        text = f"the tasks have {sum(tasks)} of the {classes} classes, the others are left out"
        typer.echo(f"dualcba: {text}", err=True)


def _tell(results: list[Result], out: Path, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([result.to_dict() for result in results]))
    elif not quiet:
        console = wide_console()
        for table in summary(results, console):
            console.print(table)
        typer.echo(f"{len(results)} results in {out}")


@app.command()
def resume(
    out: Annotated[Path, typer.Argument(help="the --out of an earlier `dualcba run`")],
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    jobs: Jobs = None,
    abreast: Abreast = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with what an interrupted `dualcba run` left: its runs that have no result."""
    specs, there = read_plan(out), list(read_results(out).values())
    missing = [spec for spec in specs if not _results_of([spec], there)]
    hardware, load = Hardware(device, engine, precision), Loader(data_dir)
    check_all(missing, load, hardware)
    show = not quiet and not as_json
    if show:
        typer.echo(f"{len(specs) - len(missing)} of {len(specs)} runs are there")
    if missing:
        run_with_progress(missing, load, hardware, out, Ways(jobs, abreast), show=show)
    _tell(_results_of(specs, list(read_results(out).values())), out, quiet=quiet, as_json=as_json)


def _results_of(specs: list[Spec], results: list[Result]) -> list[Result]:
    """For each spec the result that serves it, where there is one."""
    found: list[Result] = []
    for spec in specs:
        of_seed = [r for r in results if r.seed == spec.seed]
        found += [r for r in of_seed if matches(r, spec)][:1]
    return found


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="of `dualcba list experiments`, or all")],
    seeds: Annotated[int, typer.Option(help="how many seeds, from 0 on")] = 3,
    dataset: Annotated[str | None, typer.Option(help="cifar10, cifar100 or tiny-imagenet")] = None,
    column: Annotated[
        str | None, typer.Option(help="only columns with this text, such as 'M = 2000'")
    ] = None,
    scale: Annotated[str, typer.Option(help="paper; or small: digits, for a CPU")] = "paper",
    out: Annotated[Path | None, typer.Option(help="folder for the results")] = None,
    jobs: Jobs = None,
    abreast: Abreast = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is needed")] = False,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper, or what is missing of it, and show it beside the paper.

    Results lie in runs/reproduce, or runs/reproduce-small, and are never computed twice.
    """
    folder = out or Path("runs/reproduce" if scale == "paper" else f"runs/reproduce-{scale}")
    ways = Ways(jobs, abreast)
    request = Request(name, seeds, dataset, column, scale, folder, ways, dry_run, quiet, as_json)
    reproduce_all(request, Loader(data_dir), Hardware(device, engine, precision))


@app.command()
def report(out: Annotated[Path, typer.Argument(help="a folder of results")]) -> None:
    """Write one HTML file on the results in a folder, with tables and figures."""
    typer.echo(write_report(out))


def _numbers(text: str) -> int | list[int] | str:
    """`5` is a number, `2,3` a list of numbers, anything else a word."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        return text
    return values if len(values) > 1 else values[0]


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(expected("--option", text, "name=value"))
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


@app.command()
def bench(
    network: Annotated[str, typer.Option(help="mlp, resnet18-slim or resnet18")] = "mlp",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:n]")] = "auto",
    methods: Annotated[str, typer.Option(help="with commas")] = "er,er-dual-cba",
    against: Annotated[str, typer.Option(help="bare, usual, with commas")] = "bare,usual",
    steps: Annotated[int, typer.Option(help="per round")] = 20,
    rounds: Annotated[int, typer.Option(help="in which all take turns")] = 9,
    memory: Annotated[bool, typer.Option(help="each alone too: memory, first step")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the numbers to this file")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Time dualcba beside a bare PyTorch loop and the usual research loop, on made-up images."""
    from dualcba.bench import bench as measure

    measure(
        network=network, device=device, methods=methods.split(","), against=against.split(","),
        steps=steps, rounds=rounds, memory=memory, json_file=json_file, show=not quiet,
    )  # fmt: skip


def main() -> None:
    """Run the command line; what is wrong with the input is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except FloatingPointError as error:
        _fail(error, 1)
    except (RuntimeError, MemoryError) as error:
        if not _is_full(error):
            raise
        reason = (str(error).splitlines() or ["out of memory"])[0].split(ON_CPU)[-1].rstrip(".")
        room = "expected room, perhaps by fewer --abreast or --jobs"
        _fail(f"{reason}; {room}; the runs that were complete are kept", 1)
    except (ValueError, OSError) as error:
        _fail(error, 2)
    except Exception as error:
        message = getattr(error, "format_message", None)  # an error of usage
        if message is None:
            raise
        text = message() + _given(error)
        one_line = text if "Usage:" in text else " ".join(text.split())
        _fail(one_line, getattr(error, "exit_code", 2))
    if code == INTERRUPTED:
        _fail("interrupted; the runs that were complete are kept", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _is_full(error: Exception) -> bool:
    """Whether a device or the machine has no more memory."""
    known = isinstance(error, torch.cuda.OutOfMemoryError | MemoryError)
    return known or ON_CPU in str(error)


def _given(error: Exception) -> str:
    """The value that an error of usage is about, where it does not say so itself."""
    for name in getattr(getattr(error, "param", None), "opts", ()):
        if name in sys.argv[:-1]:
            value = sys.argv[sys.argv.index(name) + 1]
            return "" if value in str(error) else f" (given: {value!r})"
    return ""


def _fail(error: object, code: int) -> NoReturn:
    typer.echo(f"dualcba: {error}" if "\n" not in str(error) else str(error), err=True)
    sys.exit(code)
