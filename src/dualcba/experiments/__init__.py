"""Specs, the runner and the run store."""

from dualcba.experiments.runner import Hardware, Run, make_learner
from dualcba.experiments.scheduler import Load, check_all, run_all
from dualcba.experiments.settings import SETTINGS
from dualcba.experiments.spec import Spec, fields, make_specs, read_toml
from dualcba.experiments.store import check_free, read_results, write_result

__all__ = [
    "SETTINGS",
    "Hardware",
    "Load",
    "Run",
    "Spec",
    "check_all",
    "check_free",
    "fields",
    "make_learner",
    "make_specs",
    "read_results",
    "read_toml",
    "run_all",
    "write_result",
]
