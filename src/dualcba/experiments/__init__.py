"""Specs, the runner, the run store and the paper's experiments."""

from dualcba.experiments.paper.catalogue import Entry, Experiment, experiments, matches
from dualcba.experiments.run import Run, make_learner
from dualcba.experiments.scheduler import Load, Loader, check_all, run_all
from dualcba.experiments.settings import SETTINGS
from dualcba.experiments.spec import Spec, fields, make_specs, read_toml
from dualcba.experiments.store import (
    check_free,
    read_plan,
    read_results,
    write_plan,
    write_result,
)
from dualcba.options import Hardware

__all__ = [
    "SETTINGS",
    "Entry",
    "Experiment",
    "Hardware",
    "Load",
    "Loader",
    "Run",
    "Spec",
    "check_all",
    "check_free",
    "experiments",
    "fields",
    "make_learner",
    "make_specs",
    "matches",
    "read_plan",
    "read_results",
    "read_toml",
    "run_all",
    "write_plan",
    "write_result",
]
