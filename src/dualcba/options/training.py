"""The options of a learner and of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from dualcba.options.choices import (
    ADAPTOR,
    CBA,
    DATA,
    DUAL,
    EVALUATION,
    MAIN,
    METHOD,
    NETWORK,
    AnytimeScores,
    Augmentation,
    BoundaryMode,
    ForwardMode,
    Head,
    IBNAverage,
    LabelledBatches,
    Levels,
    LossMean,
    NetworkName,
    Norm,
    OnOutlier,
    OptimizerName,
    OuterDraw,
    OuterLoss,
    Pixels,
    ProtocolName,
    PseudoLabels,
    Readout,
    Space,
    SpecificPart,
    Targets,
    Tracking,
    UnlabelledSamples,
    UpdateOrder,
    VirtualStepName,
    WhileEmpty,
)
from dualcba.options.definition import option
from dualcba.options.values import (
    RecorderName,
    at_least_one,
    class_order,
    fraction,
    mapping,
    name_and_value,
    network_name,
    not_negative,
    numbers,
    path_text,
    recorders,
    task_division,
)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that `Learner` and `Spec` share."""

    protocol: ProtocolName = option(
        "paper",
        "set of defaults: paper, or p10 (batches of 10 with 64 from the memory, normalised "
        "together, Adam, pixels in [0, 1]); other options override it",
        METHOD,
    )
    buffer: int = option(200, "number of samples in the memory", MAIN, low=1)
    boundaries: BoundaryMode = option(
        "given",
        "task boundaries: given (each new task is announced), or inferred (detected from the "
        "labels)",
        METHOD,
        in_python="task boundaries: given (call `new_task` when a task begins), or inferred "
        "(detected from the labels; do not call `new_task`)",
    )
    forward: ForwardMode = option(
        "split",
        "batches that are normalised together: split (the new batch, each memory draw and each "
        "view of them separately), concat (new and memory samples together), or sources (each "
        "batch with its views)",
        METHOD,
    )
    loss_mean: LossMean = option(
        "batches",
        "loss of ER, OBC and SS-IL: batches (mean of the new batch plus mean of the memory draw), "
        "or samples (one mean over all of them)",
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
        "batches that update the running statistics: all, labelled (all except the unlabelled "
        "part of a cycled batch and strong views), or memory (only memory draws, once there are "
        "any)",
        NETWORK,
    )
    while_empty: WhileEmpty = option(
        "train",
        "what to do with a batch while the memory is empty: train (on it), or store (put it into "
        "the memory, without a step)",
        METHOD,
    )
    head: Head = option(
        "linear",
        "last layer of the network: linear, or cosine (a scale times the cosine of features and "
        "class weights)",
        NETWORK,
    )
    head_scale: float | None = option(None, "scale of the cosine head; 10 by default", NETWORK)
    learn_scale: bool | None = option(
        None,
        "whether the scale of the cosine head is learnt, starting at head_scale; by default false",
        NETWORK,
    )
    seed: int = option(0, "seed of all random numbers", MAIN, low=0)
    batch_size: int = option(
        32,
        "new samples per step; each step also draws memory_batch samples from the memory",
        MAIN,
        low=1,
        in_python="expected number of new samples per step. `observe` makes one step with the "
        "batch that it is given, of any size; batch_size sets the default of memory_batch and the "
        "batch size of some passes over the memory",
    )
    memory_batch: int | None = option(
        None,
        "samples per memory draw, also in the outer step; by default batch_size",
        NETWORK,
        low=1,
    )
    optimizer: OptimizerName = option("sgd", "optimiser of the network", NETWORK)
    lr: float = option(
        0.03, "learning rate of the network; 0.0005 by default with adam and adamw", MAIN
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
        0, "number of steps at the start of each task during which every step updates the adaptor",
        ADAPTOR, low=0, adaptors=CBA,
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
        "outer loss: method (the loss of the method), ce (cross-entropy alone), or adjusted "
        "(cross-entropy, logit-adjusted for the class frequencies of the outer draw)",
        ADAPTOR,
        adaptors=CBA,
    )
    targets: Targets = option(
        "adapted",
        "stored logits that DER++ and RAR rehearse: adapted (corrected by the adaptor when they "
        "were stored, and compared with corrected logits), or raw (compared with raw logits)",
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
        "of the network would make, with its moments), or sgd (a plain SGD step)",
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
        "whether the correction of each part is multiplied by a learnt strength, initially 0",
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
        "class-specific part of Dual-CBA: single (one network), individual (one network for old "
        "and one for new classes), or none",
        ADAPTOR,
        adaptors=DUAL,
    )
    agnostic: bool = option(
        True, "whether Dual-CBA has a class-agnostic part", ADAPTOR, adaptors=DUAL
    )
    divide: bool = option(
        False,
        "whether the class-agnostic corrections of old and of new classes are divided by the "
        "number of these classes",
        ADAPTOR,
        adaptors=DUAL,
    )
    counts: bool = option(
        False,
        "whether the class-agnostic part is also given the number of old and new classes, and of "
        "their samples in the memory and the current batch",
        ADAPTOR,
        adaptors=DUAL,
    )
    agnostic_from: str | None = option(
        None,
        "class-agnostic part to load and freeze: pretrained (the one in the package), or a file "
        "written by another run",
        ADAPTOR,
        takes="`pretrained` or a path",
        adaptors=DUAL,
        accept=path_text,
    )
    freeze_after: int | None = option(
        None, "number of tasks after which the class-agnostic part is frozen", ADAPTOR,
        low=2, adaptors=DUAL,
    )  # fmt: skip
    on_outlier: OnOutlier = option(
        "raise",
        "what to do with a batch that has an outlier or a result that is not finite: raise (an "
        "error; the step is undone), skip (the batch), or clip (the outlier)",
        NETWORK,
    )
    ibn_augment: bool = option(True, "augment the memory when IBN estimates statistics", EVALUATION)
    ibn_average: IBNAverage = option(
        "cumulative",
        "how IBN averages over batches of the memory: cumulative (their mean), ema (a moving "
        "average whose weights are normalised to a sum of 1), literal (the paper's moving average "
        "from 0, not normalised), or continued (a moving average from the running statistics of "
        "training)",
        EVALUATION,
    )
    readout: Readout = option(
        "head",
        "how the network's outputs are classified: head (as the method does), ncm (the nearest "
        "class mean of the memory's features), both (the product of their probabilities), lda (a "
        "linear discriminant of the memory's features), both-lda (the product of head and lda), "
        "debiased (the logits minus a bias estimated from the memory), or for the single-level "
        "ablation adapted (the head, corrected by the adaptor)",
        EVALUATION,
    )
    test_flip: bool = option(
        False,
        "average the scores of an image and its mirror image in predictions; images only",
        EVALUATION,
    )
    seen_only: bool = option(False, "predict only classes that have been seen", EVALUATION)
    method_options: dict[str, Any] = option(
        dict,
        "an option of the method itself, such as alpha=0.5 with derpp",
        METHOD,
        in_python="options of the method itself, by name: method_options={'alpha': 0.5} with the "
        "method 'derpp'",
        takes="names with values",
        flag="option",
        repeatable=True,
        parse=name_and_value,
        accept=mapping,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """The options of one run: data, method, network and evaluation."""

    method: str = option(
        "er-dual-cba",
        "rehearsal method, optionally followed by the name of a bias adaptor: er, er-cba, "
        "er-dual-cba, …, see `dualcba list methods`",
        MAIN,
        takes="a name, or a list of names",
        repeatable=True,
    )
    dataset: str = option(
        "digits",
        "name of a dataset (`dualcba list datasets`), a folder of images by class, or an .npz file",
        MAIN,
        takes="a name or a path",
    )
    setting: str = option(
        "online",
        "how the data arrive: online, blurry-K, i-blurry-N-M, gaussian-W, longtail-R, semi-R or "
        "offline; several are joined by +, see docs/settings.md",
        MAIN,
        takes="a name",
    )
    tasks: Any = option(
        5,
        "number of equal tasks, or the number of classes in each: 2,3,5",
        MAIN,
        takes="a whole number, a list of whole numbers, or a list of lists of classes",
        parse=numbers,
        accept=task_division,
    )
    class_order: Any = option(
        "natural",
        "order of the classes: natural, shuffled (by the seed), or 3,1,2,…",
        DATA,
        takes="`natural`, `shuffled`, or a list of whole numbers",
        parse=numbers,
        accept=class_order,
    )
    validation: float = option(
        0.0, "fraction of the training data held out and used instead of the test data", DATA,
        accept=fraction,
    )  # fmt: skip
    pixels: Pixels = option(
        "normalised",
        "inputs of the network: normalised (by mean and standard deviation of the dataset), or "
        "unit (pixels in [0, 1], other numbers as they are)",
        DATA,
    )
    epochs: int = option(None, "passes over each task; 1 by default, offline 50", DATA, low=1)
    lr_drops: bool = option(
        None,
        "whether the learning rate is divided by 10 after 0.7 and again after 0.9 of a task's "
        "epochs; by default only offline",
        DATA,
    )
    labelled_batches: LabelledBatches = option(
        "mixed",
        "semi-supervised: mixed (one batch of both), cycled (a labelled batch beside each "
        "unlabelled one), or alone (the labelled batches of cycled without the unlabelled ones)",
        DATA,
    )
    unlabelled_samples: UnlabelledSamples = option(
        "rest",
        "semi-supervised: samples of the unlabelled loss: the rest (without a label), or all of "
        "the task",
        DATA,
    )
    store_again: bool = option(
        False,
        "semi-supervised: whether a labelled sample that is repeated in later batches of its task "
        "is offered to the memory again",
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
        "network to train; timm:NAME and hf:NAME are networks of timm and Hugging Face",
        MAIN,
        takes=", ".join(f"`{name}`" for name in (*get_args(NetworkName), "timm:NAME", "hf:NAME")),
        accept=network_name(get_args(NetworkName)),
    )
    norm: Norm = option(
        "bn",
        "normalisation layers in training: bn (batch normalisation), cn (CN: group, then batch "
        "normalisation), or adab2n (AdaB²N)",
        NETWORK,
    )
    eval_every: int = option(
        5, "steps between evaluations; 0 evaluates at task ends only", EVALUATION, low=0
    )
    anytime: AnytimeScores = option(
        "both", "statistics used for evaluations between task ends", EVALUATION
    )
    real_time: bool = option(
        False,
        "let the stream continue while the method trains: it skips the batches that arrive "
        "meanwhile",
        EVALUATION,
    )
    relative_cost: float | None = option(
        None,
        "in real time: cost of a step relative to ER, at least 1; by default counted in FLOPs",
        EVALUATION,
        accept=at_least_one,
    )
    record: list[str] = option(
        list,
        f"also record: {', '.join(get_args(RecorderName))}",
        EVALUATION,
        takes="a list of these names",
        repeatable=True,
        accept=recorders,
    )
