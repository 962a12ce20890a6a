"""Specs, the runner, results, the run store and the paper's experiments."""

from dualcba.experiments.making import make_learner
from dualcba.experiments.matching import matches
from dualcba.experiments.paper.catalogue import Entry, Experiment, experiments
from dualcba.experiments.result import Result
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import Load, Loader, check_all, run_all
from dualcba.experiments.settings import SETTINGS
from dualcba.experiments.spec import Spec, fields, make_specs, read_toml
from dualcba.experiments.store import (
    check_free,
    find_results,
    known_data,
    read_plan,
    read_results,
    write_plan,
    write_result,
)
from dualcba.options import Hardware

__all__ = [
    "SETTINGS", "Entry", "Experiment", "Hardware", "Load", "Loader", "Result", "Run", "Spec",
    "check_all", "check_free", "experiments", "fields", "find_results", "known_data",
    "make_learner", "make_specs", "matches", "read_plan", "read_results", "read_toml",
    "run_all", "write_plan", "write_result",
]  # fmt: skip
