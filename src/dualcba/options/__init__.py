"""Every option, defined once: name, type, choices, default, help and check.

`Learner`, `Spec`, TOML files, the command line and `docs/options.md` are generated from the
dataclasses in this module. To add an option, add a field to one of them and use it. torch is not
imported here, so that `dualcba --help` answers at once.

A field that is None was not given. `fill` puts the default in its place: that of the kind of
adaptor (`KIND_DEFAULTS`), else that of the protocol (`PROTOCOLS`), else the dataset's
(`DATASET_DEFAULTS`), else that of the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from dualcba.errors import expected
from dualcba.options.definition import Option, definitions, fill, option, same_as
from dualcba.options.values import (
    Interval,
    RecorderName,
    TrackerName,
    at_least_one,
    class_order,
    fraction,
    interval,
    mapping,
    name_and_value,
    name_and_values,
    network_name,
    not_negative,
    numbers,
    path,
    path_text,
    read_interval,
    recorders,
    task_division,
    titles,
    trackers,
    words,
)

__all__ = ["Option", "definitions", "fill", "option", "same_as"]

AdaptorKind = Literal["cba", "dual-cba", "balanced-cba"]
OuterDraw = Literal["memory", "balanced"]
Targets = Literal["adapted", "raw"]
PseudoLabels = Literal["adapted", "raw"]
OptimizerName = Literal["sgd", "adam", "adamw"]
VirtualStepName = Literal["optimizer", "sgd"]
OuterLoss = Literal["method", "ce", "adjusted"]
Levels = Literal["bi", "joint", "buffer"]
UpdateOrder = Literal["adaptor-first", "network-first"]
SpecificPart = Literal["single", "individual", "none"]
Space = Literal["logit", "probability"]
Norm = Literal["bn", "cn", "adab2n"]
Statistics = Literal["bn", "ibn"]
ForwardMode = Literal["split", "concat"]
Head = Literal["linear", "cosine"]
Tracking = Literal["all", "labelled", "memory"]
IBNAverage = Literal["cumulative", "ema", "literal"]
IBNRefresh = Literal["parts", "full"]
Augmentation = Literal["none", "partial", "full", "strong"]
BoundaryMode = Literal["given", "inferred"]
OnOutlier = Literal["raise", "skip", "clip"]
LossMean = Literal["batches", "samples"]
WhileEmpty = Literal["train", "store"]
Pixels = Literal["normalised", "unit"]
ProtocolName = Literal["paper", "p10"]
Readout = Literal["head", "ncm", "both"]
LabelledBatches = Literal["mixed", "cycled"]
UnlabelledSamples = Literal["rest", "all"]
AnytimeScores = Literal["both", "bn", "ibn"]
NetworkName = Literal["resnet18", "resnet18-slim", "mlp"]
EngineName = Literal["auto", "eager", "captured"]
PlaceName = Literal["local", "ray", "slurm"]
PrecisionName = Literal["auto", "fp32", "bf16"]
Scale = Literal["paper", "small"]
Colour = Literal["auto", "grey", "rgb"]

CBA: tuple[AdaptorKind, ...] = get_args(AdaptorKind)
DUAL: tuple[AdaptorKind, ...] = CBA[1:]
"""The kinds with a class-specific and a class-agnostic part."""

BALANCED: AdaptorKind = CBA[-1]

DATA, METHOD, ADAPTOR = "Data", "Method", "Adaptor"
NETWORK, EVALUATION = "Network and optimiser", "Evaluation"
SWEEP, OUTPUT, HARDWARE = "Sweep", "Output", "Hardware"
GROUPS = (DATA, METHOD, ADAPTOR, NETWORK, EVALUATION, SWEEP, OUTPUT, HARDWARE)
"""The sections of `--help`, in order."""

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"buffer": 100, "tasks": 5, "batch_size": 10, "network": "mlp"},
    "cifar10": {"buffer": 200, "tasks": 5, "network": "resnet18", "adaptor_lr": 0.001},
    "cifar100": {"buffer": 2000, "tasks": 10, "network": "resnet18"},
    "tiny-imagenet": {"buffer": 2000, "tasks": 10, "network": "resnet18"},
    "mnist": {"tasks": 5, "network": "mlp"},
    "fashion-mnist": {"tasks": 5, "network": "mlp"},
}
"""Defaults that a dataset sets; any other dataset takes those of the definitions."""

COSINE_DEFAULTS = {"head_scale": 10.0, "learn_scale": False}
"""Defaults of the options that only a cosine head has."""

KIND_DEFAULTS: dict[str, dict[str, Any]] = {
    BALANCED: {
        "outer_draw": "balanced",
        "outer_loss": "ce",
        "divide": True,
        "adaptor_lr": 0.01,
    },
}
"""Defaults that a kind of adaptor sets; they go before those of the dataset."""

PROTOCOLS: dict[str, dict[str, Any]] = {
    "paper": {},
    "p10": {
        "batch_size": 10,
        "memory_batch": 64,
        "forward": "concat",
        "loss_mean": "samples",
        "while_empty": "store",
        "pixels": "unit",
        "augmentation": "full",
        "optimizer": "adam",
    },
}
"""Defaults that a protocol sets; they go before those of the dataset.

`paper` is the protocol of Dual-CBA's paper, which the other defaults follow. `p10` is the one that
many methods of the literature are published with; its learning rate is that of `adam`.
"""

OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.0005},
    "adamw": {"lr": 0.0005},
}
"""Defaults that an optimiser of the network sets."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What a learner and a spec have in common."""

    buffer: int = option(200, "number of samples in the memory", METHOD, low=1)
    boundaries: BoundaryMode = option(
        "given", "given: tasks are announced; inferred: they are detected from the labels", METHOD
    )
    forward: ForwardMode = option(
        "split",
        "split: the new batch and each memory draw are normalised separately; concat: together",
        METHOD,
    )
    loss_mean: LossMean = option(
        "batches",
        "loss of ER: batches (mean of the new batch plus mean of the memory draw), or samples (one "
        "mean over all of them)",
        METHOD,
    )
    augmentation: Augmentation = option(
        "partial",
        "random changes of training images: none, partial (the crop and flip of the dataset), full "
        "(random resized crop, flip, colour jitter and greyscale; colour images only), or strong "
        "(random resized crop, flip, two operations of RandAugment and a cutout)",
        METHOD,
    )
    tracking: Tracking = option(
        "all",
        "batches that update the running statistics: all, labelled (not the unlabelled part of a "
        "cycled batch, nor strong views), or memory (memory draws alone, once there are any)",
        NETWORK,
    )
    while_empty: WhileEmpty = option(
        "train",
        "batches that arrive while the memory is empty: train on them, or only store them",
        METHOD,
    )
    head: Head = option(
        "linear",
        "last layer of the network: linear, or cosine (a scale times the cosine of features and "
        "class weights)",
        NETWORK,
    )
    head_scale: float | None = option(None, "scale of the cosine head (10)", NETWORK)
    learn_scale: bool | None = option(
        None, "whether the scale of the cosine head is learnt, from head_scale on (no)", NETWORK
    )
    seed: int = option(0, "seed of all random numbers", DATA, low=0)
    batch_size: int = option(32, "samples per step", NETWORK, low=1)
    memory_batch: int | None = option(
        None, "samples per memory draw, also in the outer step; by default batch_size", NETWORK,
        low=1,
    )  # fmt: skip
    optimizer: OptimizerName = option("sgd", "optimiser of the network", NETWORK)
    lr: float = option(
        0.03, "learning rate of the network; 0.0005 by default with adam and adamw", NETWORK
    )
    momentum: float = option(0.0, "momentum of sgd, below 1", NETWORK, accept=fraction)
    nesterov: bool = option(False, "whether the momentum of sgd is Nesterov's", NETWORK)
    weight_decay: float = option(
        0.0,
        "weight decay of the network: added to the gradient (sgd, adam), or separate from it "
        "(adamw)",
        NETWORK,
        accept=not_negative,
    )
    beta1: float = option(
        0.9, "decay of the mean of gradients in adam and adamw", NETWORK, accept=fraction
    )
    beta2: float = option(
        0.999, "decay of the mean of squared gradients in adam and adamw", NETWORK, accept=fraction
    )
    adaptor_lr: float = option(0.01, "learning rate of the adaptor (Adam)", ADAPTOR, adaptors=CBA)
    outer_every: int = option(
        5, "steps between two updates of the adaptor, from the second task on", ADAPTOR,
        low=1, adaptors=CBA,
    )  # fmt: skip
    outer_warmup: int = option(
        0, "steps at the start of a task in which the adaptor is updated at every step", ADAPTOR,
        low=0, adaptors=CBA,
    )  # fmt: skip
    outer_draw: OuterDraw = option(
        "memory",
        "samples of the outer loss: memory (uniform over the memory), or balanced (evenly over the "
        "classes in the memory and the current batch)",
        ADAPTOR,
        adaptors=CBA,
    )
    outer_loss: OuterLoss = option(
        "method",
        "outer loss: method (that of the method), ce (cross-entropy alone), or adjusted "
        "(cross-entropy, logit-adjusted for the class frequencies of the outer draw)",
        ADAPTOR,
        adaptors=CBA,
    )
    targets: Targets = option(
        "adapted",
        "stored logits that DER++ and RAR rehearse: adapted (by the adaptor when they were stored, "
        "compared with adapted logits), or raw (compared with raw logits)",
        ADAPTOR,
        adaptors=CBA,
    )
    levels: Levels = option(
        "bi",
        "loss that trains the adaptor: bi (outer loss after a virtual step of the network), or "
        "for the single-level ablation joint (inner loss) or buffer (outer loss, not unrolled)",
        ADAPTOR,
        adaptors=CBA,
    )
    update_order: UpdateOrder = option(
        "adaptor-first",
        "order of the updates in a step: adaptor-first (the network is then updated with the new "
        "adaptor), or network-first (with the adaptor before its update, as in the paper)",
        ADAPTOR,
        adaptors=CBA,
    )
    virtual: VirtualStepName = option(
        "optimizer",
        "virtual step of the last layer in the outer loss: optimizer (the step that the optimiser "
        "of the network would make, with its moments), or sgd (plain)",
        ADAPTOR,
        adaptors=CBA,
    )
    virtual_lr: float | None = option(
        None, "learning rate of the virtual step sgd; by default that of the network", ADAPTOR,
        adaptors=CBA,
    )  # fmt: skip
    space: Space = option(
        "logit",
        "what the adaptor corrects: logit, or probability (the paper's literal reading)",
        ADAPTOR,
        adaptors=CBA,
    )
    strength: bool = option(
        False,
        "whether the correction of each part has a strength, learnt with it and 0 at first",
        ADAPTOR,
        adaptors=CBA,
    )
    prior: bool = option(
        False,
        "whether the correction starts from the log frequency of each class in the inner batches "
        "(logit adjustment), to which the learnt parts add",
        ADAPTOR,
        adaptors=CBA,
    )
    width: int = option(
        256, "hidden units of each network of the adaptor", ADAPTOR, low=1, adaptors=CBA
    )
    specific: SpecificPart = option(
        "single",
        "class-specific part of Dual-CBA: one network, individual ones for old and new, or none",
        ADAPTOR,
        adaptors=DUAL,
    )
    agnostic: bool = option(
        True, "whether Dual-CBA has a class-agnostic part", ADAPTOR, adaptors=DUAL
    )
    divide: bool = option(
        False, "divide the class-agnostic correction by the number of classes of its side", ADAPTOR,
        adaptors=DUAL,
    )  # fmt: skip
    counts: bool = option(
        False,
        "whether the class-agnostic part is also given the number of old and new classes, and of "
        "their samples in the memory and the current batch",
        ADAPTOR,
        adaptors=DUAL,
    )
    agnostic_from: str | None = option(
        None,
        "load the class-agnostic part, frozen: pretrained, or a file that another run wrote",
        ADAPTOR,
        adaptors=DUAL,
        accept=path_text,
    )
    freeze_after: int | None = option(
        None, "number of tasks after which the class-agnostic part is frozen", ADAPTOR,
        low=2, adaptors=DUAL,
    )  # fmt: skip
    on_outlier: OnOutlier = option(
        "raise",
        "a batch with an outlier or a result that is not finite: raise an error and undo the step, "
        "skip the batch, or clip the outlier",
        NETWORK,
    )
    ibn_augment: bool = option(True, "augment the memory when IBN estimates statistics", EVALUATION)
    ibn_average: IBNAverage = option(
        "cumulative",
        "how IBN averages over batches of the memory: cumulative (their mean), ema (a moving "
        "average, its weights divided by their sum), or literal (the same, not divided)",
        EVALUATION,
    )
    readout: Readout = option(
        "head",
        "how the network's outputs are classified: head (as the method does), ncm (the nearest "
        "class mean of the memory's features), or both (the product of their probabilities)",
        EVALUATION,
    )
    seen_only: bool = option(False, "predict only classes that have been seen", EVALUATION)
    method_options: dict[str, Any] = option(
        dict, "an option of the method itself, as name=value", METHOD,
        flag="option", repeatable=True, parse=name_and_value, accept=mapping,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """One run: what is learnt, by which method, and how it is scored."""

    method: str = option(
        "er-dual-cba", "rehearsal method, see `dualcba list methods`", METHOD, repeatable=True
    )
    dataset: str = option("digits", "a name, a folder of images by class, or an .npz file", DATA)
    protocol: ProtocolName = option(
        "paper",
        "set of defaults: paper, or p10 (batches of 10 with 64 from the memory, normalised "
        "together, Adam, pixels in [0, 1]); other options override it",
        METHOD,
    )
    setting: str = option(
        "online",
        "how the data arrive: online, blurry-K, i-blurry-N-M, gaussian-W, longtail-R, semi-R or "
        "offline; several are joined by +, see docs/settings.md",
        DATA,
    )
    tasks: Any = option(
        5, "number of equal tasks, or their sizes: 2,3,5", DATA, parse=numbers, accept=task_division
    )
    class_order: Any = option(
        "natural", "order of the classes: natural, shuffled (by the seed), or 3,1,2,…", DATA,
        parse=numbers, accept=class_order,
    )  # fmt: skip
    validation: float = option(
        0.0, "fraction of the training data held out and used in the place of the test data", DATA,
        accept=fraction,
    )  # fmt: skip
    pixels: Pixels = option(
        "normalised",
        "inputs of the network: normalised (by mean and standard deviation of the dataset), or "
        "unit (pixels in [0, 1], other numbers as they are)",
        DATA,
    )
    epochs: int = option(None, "passes over each task (1, offline 50)", DATA, low=1)
    labelled_batches: LabelledBatches = option(
        "mixed",
        "semi-supervised: mixed (one batch of both), or cycled (a labelled batch beside each "
        "unlabelled one)",
        DATA,
    )
    unlabelled_samples: UnlabelledSamples = option(
        "rest",
        "semi-supervised: samples of the unlabelled loss: the rest (without a label), or all of "
        "the task",
        DATA,
    )
    pseudo_labels: PseudoLabels = option(
        "adapted",
        "semi-supervised: logits of the unlabelled loss: adapted by the adaptor, or raw",
        ADAPTOR,
        adaptors=CBA,
    )
    network: NetworkName = option(
        "resnet18-slim",
        "network to train; timm:NAME and hf:NAME are those of timm and Hugging Face",
        NETWORK,
        accept=network_name(get_args(NetworkName)),
    )
    norm: Norm = option("bn", "normalisation layers in training", NETWORK)
    eval_every: int = option(
        5, "steps between evaluations; 0 evaluates at task ends only", EVALUATION, low=0
    )
    anytime: AnytimeScores = option(
        "both", "statistics used for evaluations between task ends", EVALUATION
    )
    real_time: bool = option(
        False,
        "let the stream go on while a method trains: it skips the batches that arrive meanwhile",
        EVALUATION,
    )
    relative_cost: float | None = option(
        None,
        "in real time: cost of a step relative to ER, at least 1; by default counted in FLOPs",
        EVALUATION,
        accept=at_least_one,
    )
    record: list[str] = option(
        list, f"also record: {', '.join(get_args(RecorderName))}", EVALUATION,
        repeatable=True, accept=recorders,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where runs are computed; changes their speed, not their meaning."""

    def __post_init__(self) -> None:
        fill(self, {}, None)

    device: str = option("auto", "auto, cpu, cuda or cuda:N", HARDWARE)
    engine: EngineName = option(
        "auto", "eager, or captured as CUDA graphs; auto captures on a GPU", HARDWARE
    )
    precision: PrecisionName = option(
        "auto", "of the forward pass; auto is bf16 on a GPU that has it", HARDWARE
    )


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions(Hardware):
    """How many runs are computed at a time and where, from which data, who logs them."""

    jobs: int | None = option(None, "processes on a CPU; by default one per core", HARDWARE, low=1)
    abreast: int = option(1, "runs side by side on a GPU", HARDWARE, low=1)
    on: PlaceName = option(
        "local", "this machine, or Ray or Slurm; the latter need their extras", HARDWARE
    )
    cpus_per_task: int = option(1, "cores of a task of Ray or Slurm, as threads", HARDWARE, low=1)
    gpus_per_task: float = option(
        1.0, "number of GPUs of a task that runs on GPUs; on Ray also a fraction", HARDWARE
    )
    ray_address: str | None = option(
        None, "address HOST:PORT of a Ray cluster; by default $RAY_ADDRESS, else one here", HARDWARE
    )
    slurm: dict[str, Any] = option(
        dict, "parameter of submitit: partition=gpu, time=240; cluster=local runs here", HARDWARE,
        repeatable=True, parse=partial(name_and_value, flag="--slurm"), accept=mapping,
    )  # fmt: skip
    checkpoint_every: str = option(
        "1m",
        "interval of checkpoints inside a run: minutes, or 30s, 5m, 1h, 200steps, off",
        OUTPUT,
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
        repeatable=True, accept=trackers,
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
        list, "file of Python that registers methods of your own; it is executed", METHOD,
        flag="import", repeatable=True, accept=words,
    )  # fmt: skip
    seeds: int = option(1, "number of seeds, counted from --seed", DATA, low=1)
    sweep: dict[str, Any] = option(
        dict,
        "values of an option to try: NAME=VALUE,VALUE; a range NAME=LOW:HIGH or NAME=LOW:HIGH:log "
        "with samples=N; score=NAME; scored on --validation 0.1 unless it is given",
        SWEEP, repeatable=True, parse=name_and_values, accept=mapping,
    )  # fmt: skip
    score: list[str] = option(
        list, "further scores in the table, such as learning_acc, see docs/scores.md", OUTPUT,
        repeatable=True, accept=words,
    )  # fmt: skip
    out: Path | None = option(
        None,
        "folder for the results; by default a new one below ./runs, runs/NAME with NAME.toml, and "
        "runs/demo without any option",
        OUTPUT, accept=path,
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
        None, "height and width of the model's images; by default that of the first ones, up to 32",
        DATA, low=1,
    )  # fmt: skip
    colour: Colour = option(
        "auto", "grey or rgb images in the model; auto: grey if the first ones are", DATA
    )
    flip: bool = option(False, "whether to learn mirror images too", DATA)
    every: float = option(1.0, "seconds between two looks at the folder", DATA)
    settle: float = option(
        1.0, "seconds that a file must be unchanged before it is read", DATA, accept=not_negative
    )
    wait: float = option(
        5.0, "seconds that images wait for others to fill a batch", DATA, accept=not_negative
    )
    once: bool = option(False, "learn what is there, and end", OUTPUT)
    model: Path = option(lambda: Path("runs/model"), "folder of the model", OUTPUT, accept=path)
    save_every: float = option(
        10.0, "seconds between two saves while there is something to learn", OUTPUT,
        accept=not_negative,
    )  # fmt: skip
    method: str = option("er-balanced-cba", "rehearsal method, see `dualcba list methods`", METHOD)
    method_options: dict[str, Any] = same_as(TrainingOptions, "method_options")
    imports: list[str] = same_as(RunCommand, "imports")
    buffer: int = option(500, "number of images in the memory", METHOD, low=1)
    batch_size: int = option(10, "images per step", NETWORK, low=1)
    memory_batch: int = option(32, "images from the memory per step", NETWORK, low=1)
    lr: float = option(0.03, "learning rate of the network", NETWORK)
    network: NetworkName | None = option(
        None, "network to train; by default mlp on a CPU, resnet18-slim on a GPU", NETWORK
    )
    seed: int = same_as(TrainingOptions, "seed")
    device: str = same_as(Hardware, "device")


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(ExecutionOptions, OutputOptions):
    """Everything that `dualcba reproduce` takes."""

    seeds: int = option(3, "number of seeds, counted from 0", DATA, low=1)
    dataset: str | None = option(None, "cifar10, cifar100 or tiny-imagenet", DATA)
    column: str | None = option(
        None, "only columns whose title contains this text, such as 'M = 2000'", DATA
    )
    row: list[str] = option(
        list,
        "only the row of this title, with its adaptors, or else rows whose title contains this "
        "text; several are separated by ;",
        DATA, parse=titles, accept=words,
    )  # fmt: skip
    scale: Scale = option("paper", "paper, or small: digits, for a CPU", DATA)
    imports: list[str] = same_as(RunCommand, "imports")
    out: Path | None = option(
        None, "folder for the results; by default runs/reproduce or runs/reproduce-small", OUTPUT,
        accept=path,
    )  # fmt: skip
    dry_run: bool = option(False, "only print which runs are needed", OUTPUT)


@dataclass(frozen=True, kw_only=True)
class BenchCommand(OutputOptions):
    """Everything that `dualcba bench` takes."""

    method: list[str] = option(
        lambda: ["er", "er-dual-cba"], "methods to time", METHOD, repeatable=True
    )
    against: list[str] = option(
        lambda: ["bare", "usual"], "loops to compare with: bare, usual", METHOD, repeatable=True
    )
    network: NetworkName = option("mlp", "network to train", NETWORK)
    steps: int = option(20, "steps per round", EVALUATION, low=1)
    rounds: int = option(9, "rounds in which all contenders take turns", EVALUATION, low=1)
    memory: bool = option(
        True, "also measure peak memory and the first step, in a process each", EVALUATION
    )
    out: Path | None = option(None, "also write the numbers to this file", OUTPUT, accept=path)
    device: str = same_as(Hardware, "device")


def check_learnt_parts(specific: str, agnostic: bool, prior: bool) -> None:
    """Raise if an adaptor has no part and no prior."""
    if specific == "none" and not agnostic and not prior:
        raise ValueError("specific is 'none' and agnostic is False, expected at least one part")


def check_logit_space(space: str, **options: bool) -> None:
    """Raise if one of these options is on in another space."""
    for name, value in options.items():
        if value and space != "logit":
            raise ValueError(expected(name, value, "False unless space is 'logit'"))


def check_tracking(tracking: str, forward: str) -> None:
    """Raise if batches that are normalised together are to be tracked separately."""
    if tracking != "all" and forward == "concat":
        raise ValueError(expected("tracking", tracking, "'all' if forward is 'concat'"))


def check_optimizer(options: TrainingOptions) -> None:
    """Raise unless the options of the optimiser and of the virtual step fit each other."""
    name, known = options.optimizer, definitions(TrainingOptions)
    for other in ("momentum", "nesterov") if name != "sgd" else ("beta1", "beta2"):
        value = getattr(options, other)
        if value != known[other].default:
            wanted = "no value: it is an option of " + ("sgd" if name != "sgd" else "adam")
            raise ValueError(expected(other, value, f"{wanted}, and optimizer is {name!r}"))
    if options.nesterov and not options.momentum:
        raise ValueError(expected("nesterov", True, "False if momentum is 0"))
    if options.beta1**2 >= options.beta2:
        raise ValueError(expected("beta2", options.beta2, f"above beta1² = {options.beta1**2:g}"))
    if options.lr * options.weight_decay >= 1:
        wanted = f"less than 1 / lr = {1 / options.lr:g}"
        raise ValueError(expected("weight_decay", options.weight_decay, wanted))
    if options.virtual == "sgd" and options.levels != "bi":
        wanted = f"'optimizer' if levels is {options.levels!r}: there is no virtual step"
        raise ValueError(expected("virtual", options.virtual, wanted))
    if options.virtual_lr is not None and options.virtual != "sgd":
        raise ValueError(expected("virtual_lr", options.virtual_lr, "None unless virtual is 'sgd'"))


def check_while_empty(while_empty: str, stores_in_steps: bool) -> None:
    """Raise if steps wait for a memory that is only filled when a task ends."""
    if while_empty != "train" and not stores_in_steps:
        wanted = "'train': the method fills its memory when a task ends"
        raise ValueError(expected("while_empty", while_empty, wanted))


def optimizer_defaults(name: object) -> dict[str, Any]:
    """Return the defaults that the optimiser of the network sets."""
    return OPTIMIZER_DEFAULTS.get(name, {}) if isinstance(name, str) else {}


def protocol_defaults(options: RunOptions) -> dict[str, Any]:
    """Return the defaults that the protocol sets, and those of its optimiser or the given one."""
    name = options.protocol
    preset = PROTOCOLS.get(name, {}) if isinstance(name, str) else {}
    optimizer = options.optimizer if options.optimizer is not None else preset.get("optimizer")
    return {**preset, **optimizer_defaults(optimizer)}


def overridden(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of fields that a protocol sets and that have another value.

    >>> overridden({"protocol": "p10", "batch_size": 10, "memory_batch": 32})
    ['memory_batch']
    """
    preset = PROTOCOLS.get(str(fields.get("protocol")), {})
    preset = {**preset, **optimizer_defaults(preset.get("optimizer"))}
    return [name for name, value in preset.items() if fields.get(name, value) != value]


def kind_defaults(kind: str | None, options: TrainingOptions) -> dict[str, Any]:
    """Return the defaults that a kind of adaptor sets; with a loaded ν there is no ω by default."""
    loaded = {} if options.agnostic_from is None else {"specific": "none"}
    return {**KIND_DEFAULTS.get(kind or "", {}), **loaded}


def head_defaults(options: TrainingOptions) -> dict[str, Any]:
    """Return the defaults of the options of a cosine head, if there is one."""
    return COSINE_DEFAULTS if options.head == "cosine" else {}


def check_head_options(options: TrainingOptions, method: str, own_head: bool) -> None:
    """Raise unless the options of the head fit it; `own_head` is that of the method."""
    if options.head == "cosine" and own_head:
        raise ValueError(expected("head", options.head, f"'linear': {method} has its own head"))
    for name in COSINE_DEFAULTS if options.head != "cosine" else ():
        if (value := getattr(options, name)) is not None:
            raise ValueError(expected(name, value, f"no value: the head is {options.head}"))


def check_adaptor_parts(options: TrainingOptions) -> None:
    """Raise unless the parts of an adaptor fit each other."""
    if options.agnostic_from is not None and not options.agnostic:
        wanted = "None if agnostic is False"
        raise ValueError(expected("agnostic_from", options.agnostic_from, wanted))
    check_learnt_parts(options.specific, options.agnostic, options.prior)
    check_logit_space(options.space, strength=options.strength, prior=options.prior)
    trained = options.agnostic and options.agnostic_from is None
    if options.freeze_after is not None and not trained:
        wanted = "None if no class-agnostic part is trained"
        raise ValueError(expected("freeze_after", options.freeze_after, wanted))
