"""Every option, defined once: name, type, choices, default, help and check.

`Learner`, `Spec`, TOML files, the command line and `docs/options.md` are generated from the
dataclasses in `training` and `commands`. To add an option, add a field to one of them and use it.
torch is not imported here, so that `dualcba --help` answers at once.

A field that is None was not given, and `fill` replaces it by its default. Defaults of the kind of
adaptor (`KIND_DEFAULTS`) come first, then those of the protocol (`PROTOCOLS`), of the dataset
(`DATASET_DEFAULTS`), and of the definition.
"""

from __future__ import annotations

from dualcba.options.checks import (
    check_adaptor_parts,
    check_learnt_parts,
    check_logit_space,
    check_optimizer,
    check_together,
)
from dualcba.options.choices import (
    ADAPTOR,
    BALANCED,
    CBA,
    DATA,
    DUAL,
    EVALUATION,
    GROUPS,
    HARDWARE,
    MAIN,
    METHOD,
    NETWORK,
    OUTPUT,
    SWEEP,
    AdaptorKind,
    AnytimeScores,
    Augmentation,
    BoundaryMode,
    Colour,
    EngineName,
    ForwardMode,
    Head,
    IBNAverage,
    IBNRefresh,
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
    PlaceName,
    PrecisionName,
    ProtocolName,
    PseudoLabels,
    Readout,
    Scale,
    Space,
    SpecificPart,
    Statistics,
    Targets,
    Tracking,
    UnlabelledSamples,
    UpdateOrder,
    VirtualStepName,
    WhileEmpty,
)
from dualcba.options.commands import (
    BenchCommand,
    ExecutionOptions,
    Hardware,
    LearnCommand,
    OutputOptions,
    ReproduceCommand,
    ResumeCommand,
    RunCommand,
)
from dualcba.options.defaults import (
    COSINE_DEFAULTS,
    DATASET_DEFAULTS,
    KIND_DEFAULTS,
    OPTIMIZER_DEFAULTS,
    PROTOCOLS,
    head_defaults,
    kind_defaults,
    optimizer_defaults,
    overridden,
    protocol_defaults,
    protocol_preset,
)
from dualcba.options.definition import Option, definitions, fill, option, same_as
from dualcba.options.recipes import (
    RECIPES,
    WITHOUT_COLOUR,
    follow_recipe,
    recipe_method,
    recipe_of,
    with_recipe,
)
from dualcba.options.training import RunOptions, TrainingOptions

__all__ = [
    "ADAPTOR", "BALANCED", "CBA", "COSINE_DEFAULTS", "DATA", "DATASET_DEFAULTS", "DUAL",
    "EVALUATION", "GROUPS", "HARDWARE", "KIND_DEFAULTS", "MAIN", "METHOD", "NETWORK",
    "OPTIMIZER_DEFAULTS", "OUTPUT", "PROTOCOLS", "RECIPES", "SWEEP", "WITHOUT_COLOUR",
    "AdaptorKind", "AnytimeScores", "Augmentation", "BenchCommand", "BoundaryMode", "Colour",
    "EngineName", "ExecutionOptions", "ForwardMode", "Hardware", "Head", "IBNAverage",
    "IBNRefresh", "LabelledBatches", "LearnCommand", "Levels", "LossMean", "NetworkName",
    "Norm", "OnOutlier", "OptimizerName", "Option", "OuterDraw", "OuterLoss", "OutputOptions",
    "Pixels", "PlaceName", "PrecisionName", "ProtocolName", "PseudoLabels", "Readout",
    "ReproduceCommand", "ResumeCommand", "RunCommand", "RunOptions", "Scale", "Space",
    "SpecificPart", "Statistics", "Targets", "Tracking", "TrainingOptions", "UnlabelledSamples",
    "UpdateOrder", "VirtualStepName", "WhileEmpty", "check_adaptor_parts", "check_learnt_parts",
    "check_logit_space", "check_optimizer", "check_together", "definitions", "fill",
    "follow_recipe", "head_defaults", "kind_defaults", "optimizer_defaults", "option",
    "overridden", "protocol_defaults", "protocol_preset", "recipe_method", "recipe_of",
    "same_as", "with_recipe",
]  # fmt: skip
