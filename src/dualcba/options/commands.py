"""The options of the commands and of the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from dualcba.options.choices import (
    DATA,
    EVALUATION,
    HARDWARE,
    MAIN,
    METHOD,
    NETWORK,
    OUTPUT,
    SWEEP,
    Colour,
    EngineName,
    NetworkName,
    PlaceName,
    PrecisionName,
    Scale,
)
from dualcba.options.definition import fill, option, same_as
from dualcba.options.training import RunOptions, TrainingOptions
from dualcba.options.values import (
    Interval,
    TrackerName,
    interval,
    mapping,
    name_and_value,
    name_and_values,
    not_negative,
    path,
    read_interval,
    titles,
    trackers,
    words,
)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The device, engine and number format of runs."""

    def __post_init__(self) -> None:
        fill(self, {}, None)

    device: str = option(
        "auto", "where to compute: cpu, cuda or cuda:N; auto takes a GPU if torch sees one", MAIN
    )
    engine: EngineName = option(
        "auto",
        "how steps are launched: eager (operation by operation), or captured (as CUDA graphs, on a "
        "GPU only); auto captures on a GPU",
        HARDWARE,
    )
    precision: PrecisionName = option(
        "auto",
        "number format of the forward pass; auto is bf16 on a GPU that supports it, else fp32",
        HARDWARE,
    )


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions(Hardware):
    """How and where runs are executed, where their data are, and where they are logged."""

    jobs: int | None = option(
        None, "number of processes on a CPU; by default one per core", HARDWARE, low=1
    )
    abreast: int = option(
        1,
        "number of runs that one GPU trains at the same time, to use it better if steps are small; "
        "results do not change; no effect on a CPU",
        HARDWARE,
        low=1,
    )
    on: PlaceName = option(
        "local",
        "where runs are computed: local (this machine), ray or slurm; the latter need their extras",
        HARDWARE,
    )
    cpus_per_task: int = option(
        1, "number of cores and of threads of a Ray or Slurm task", HARDWARE, low=1
    )
    gpus_per_task: float = option(
        1.0, "number of GPUs of a Ray or Slurm task on a GPU; on Ray also a fraction", HARDWARE
    )
    ray_address: str | None = option(
        None,
        "address HOST:PORT of a Ray cluster; by default $RAY_ADDRESS, else a local one",
        HARDWARE,
    )
    slurm: dict[str, Any] = option(
        dict, "parameter of submitit: partition=gpu, time=240; cluster=local is this machine",
        HARDWARE, takes="names with values", repeatable=True,
        parse=partial(name_and_value, flag="--slurm"), accept=mapping,
    )  # fmt: skip
    checkpoint_every: str = option(
        "1m",
        "interval of checkpoints inside a run: minutes, or 30s, 5m, 1h, 200steps, off",
        OUTPUT,
        takes="a number or text",
        accept=interval,
    )
    data_dir: Path | None = option(
        None, "folder of the datasets; by default $DUALCBA_DATA, else ./data", DATA, accept=path
    )
    watch: bool = option(
        False, "write numbers of the runs in progress to their folders, for `dualcba watch`", OUTPUT
    )
    track: list[str] = option(
        list, f"also log to: {', '.join(get_args(TrackerName))}; each needs its extra", OUTPUT,
        takes="a list of these names", repeatable=True, accept=trackers,
    )  # fmt: skip

    @property
    def checkpoints(self) -> Interval | None:
        """The interval of checkpoints; None for none."""
        return read_interval(self.checkpoint_every)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a command prints."""

    def __post_init__(self) -> None:
        fill(self, {}, None)

    quiet: bool = option(False, "print no progress and no table", OUTPUT)
    json: bool = option(False, "print the results as JSON", OUTPUT)

    @property
    def verbose(self) -> bool:
        """Whether text for people is printed."""
        return not self.quiet and not self.json


@dataclass(frozen=True, kw_only=True)
class RunCommand(RunOptions, ExecutionOptions, OutputOptions):
    """Everything that `dualcba run` takes, on the command line and in a TOML file."""

    imports: list[str] = option(
        list, "path of a Python file that registers methods of your own; it is executed", METHOD,
        takes="a list of paths", flag="import", repeatable=True, accept=words,
    )  # fmt: skip
    seeds: int = option(1, "number of seeds, counted from --seed", MAIN, low=1)
    sweep: dict[str, Any] = option(
        dict,
        "values of an option to try: NAME=VALUE,VALUE; a range NAME=LOW:HIGH or NAME=LOW:HIGH:log "
        "with samples=N; score=NAME; scored on --validation 0.1 unless it is given",
        SWEEP, takes="names with values", repeatable=True, parse=name_and_values, accept=mapping,
    )  # fmt: skip
    score: list[str] = option(
        list, "further scores in the table, such as learning_acc, see docs/scores.md", OUTPUT,
        repeatable=True, accept=words,
    )  # fmt: skip
    out: Path | None = option(
        None,
        "folder for the results; by default a new folder in ./runs: runs/NAME with NAME.toml, and "
        "runs/demo without options",
        MAIN, accept=path,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(ExecutionOptions, OutputOptions):
    """Everything that `dualcba resume` takes."""

    score: list[str] = same_as(RunCommand, "score")
    imports: list[str] = same_as(RunCommand, "imports")


@dataclass(frozen=True, kw_only=True)
class LearnCommand(OutputOptions):
    """Everything that `dualcba learn` takes."""

    size: int | None = option(
        None,
        "height and width of the model's images; by default as in the first images, at most 32",
        DATA, low=1,
    )  # fmt: skip
    colour: Colour = option(
        "auto",
        "colours of the model's images: grey or rgb; auto takes those of the first images",
        DATA,
    )
    flip: bool = option(False, "whether to learn mirror images too", DATA)
    every: float = option(1.0, "seconds between two searches of the folder for new images", DATA)
    settle: float = option(
        1.0, "seconds that a file must be unchanged before it is read", DATA, accept=not_negative
    )
    wait: float = option(
        5.0, "seconds to wait for a full batch before training on a smaller one", DATA,
        accept=not_negative,
    )  # fmt: skip
    once: bool = option(False, "train on the images that are in the folder now, then stop", OUTPUT)
    model: Path = option(
        lambda: Path("runs/model"), "folder in which the model is saved", MAIN, accept=path
    )
    save_every: float = option(
        10.0, "seconds between two saves of the model while images arrive", OUTPUT,
        accept=not_negative,
    )  # fmt: skip
    method: str = option(
        "er-balanced-cba", "rehearsal method, see `dualcba list methods`", MAIN, takes="a name"
    )
    method_options: dict[str, Any] = same_as(TrainingOptions, "method_options")
    imports: list[str] = same_as(RunCommand, "imports")
    buffer: int = option(500, "number of images in the memory", MAIN, low=1)
    batch_size: int = option(10, "new images per step", NETWORK, low=1)
    memory_batch: int | None = option(
        None, "images from the memory per step; by default 32, or those of the recipe", NETWORK,
        low=1,
    )  # fmt: skip
    lr: float | None = option(
        None, "learning rate of the network; by default 0.03, or that of the recipe", NETWORK
    )
    network: NetworkName | None = option(
        None, "network to train; by default mlp on a CPU, resnet18-slim on a GPU", MAIN
    )
    seed: int = same_as(TrainingOptions, "seed")
    device: str = same_as(Hardware, "device")


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(ExecutionOptions, OutputOptions):
    """Everything that `dualcba reproduce` takes."""

    seeds: int = option(3, "number of seeds, counted from 0", MAIN, low=1)
    dataset: str | None = option(
        None,
        "only columns of this dataset: cifar10, cifar100 or tiny-imagenet",
        MAIN,
        takes="a name",
    )
    column: str | None = option(
        None, "only columns whose title contains this text, such as 'M = 2000'", DATA
    )
    row: list[str] = option(
        list,
        "only the row with this title, with its adaptors; if there is none, rows whose title "
        "contains this text; separate several by ;",
        DATA, takes="a list of titles", parse=titles, accept=words,
    )  # fmt: skip
    scale: Scale = option(
        "paper", "size of the runs: paper, or small (handwritten digits, for a CPU)", MAIN
    )
    imports: list[str] = same_as(RunCommand, "imports")
    out: Path | None = option(
        None, "folder for the results; by default runs/reproduce or runs/reproduce-small", MAIN,
        accept=path,
    )  # fmt: skip
    dry_run: bool = option(False, "only print which runs are needed", OUTPUT)


@dataclass(frozen=True, kw_only=True)
class BenchCommand(OutputOptions):
    """Everything that `dualcba bench` takes."""

    method: list[str] = option(
        lambda: ["er", "er-dual-cba"], "methods to time", MAIN, repeatable=True
    )
    against: list[str] = option(
        lambda: ["bare", "usual"],
        "training loops to compare with: bare (as short as PyTorch allows), usual (as research "
        "code is usually written)",
        MAIN,
        takes="a list of these names",
        repeatable=True,
    )
    network: NetworkName = option("mlp", "network to train", MAIN)
    steps: int = option(20, "steps that are timed in each round", EVALUATION, low=1)
    rounds: int = option(
        9, "number of rounds; in each, every loop is timed once", EVALUATION, low=1
    )
    memory: bool = option(
        True,
        "also measure peak memory and the first step, each loop in a process of its own",
        EVALUATION,
    )
    out: Path | None = option(None, "also write the numbers to this JSON file", MAIN, accept=path)
    device: str = same_as(Hardware, "device")
