"""The choices of options, and the groups in which `--help` shows options."""

from __future__ import annotations

from typing import Literal, get_args

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
ForwardMode = Literal["split", "concat", "sources"]
Head = Literal["linear", "cosine"]
Tracking = Literal["all", "labelled", "memory"]
IBNAverage = Literal["cumulative", "ema", "literal", "continued"]
IBNRefresh = Literal["parts", "full"]
Augmentation = Literal["none", "partial", "full", "strong"]
BoundaryMode = Literal["given", "inferred"]
OnOutlier = Literal["raise", "skip", "clip"]
LossMean = Literal["batches", "samples"]
WhileEmpty = Literal["train", "store"]
Pixels = Literal["normalised", "unit"]
ProtocolName = Literal["paper", "p10"]
Readout = Literal["head", "ncm", "both", "lda", "both-lda", "debiased", "adapted"]
LabelledBatches = Literal["mixed", "cycled", "alone"]
UnlabelledSamples = Literal["rest", "all"]
AnytimeScores = Literal["both", "bn", "ibn"]
NetworkName = Literal["resnet18", "resnet18-slim", "mlp"]
EngineName = Literal["auto", "eager", "captured"]
PlaceName = Literal["local", "ray", "slurm"]
PrecisionName = Literal["auto", "fp32", "bf16"]
Scale = Literal["paper", "small"]
Colour = Literal["auto", "grey", "rgb"]

PLAIN_READOUTS = " or ".join(repr(name) for name in get_args(Readout) if name != "adapted")
"""The read-outs that need no adaptor, for error messages."""

CBA: tuple[AdaptorKind, ...] = get_args(AdaptorKind)
DUAL: tuple[AdaptorKind, ...] = CBA[1:]
"""The kinds with a class-specific and a class-agnostic part."""

BALANCED: AdaptorKind = CBA[-1]

MAIN = "Main"
"""The options that most runs and learners need."""

DATA, METHOD, ADAPTOR = "Data", "Method", "Adaptor"
NETWORK, EVALUATION = "Network and optimiser", "Evaluation"
SWEEP, OUTPUT, HARDWARE = "Sweep", "Output", "Hardware"
GROUPS = (MAIN, DATA, METHOD, ADAPTOR, NETWORK, EVALUATION, SWEEP, OUTPUT, HARDWARE)
"""The sections of `--help`, in order."""
