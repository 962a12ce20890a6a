"""Specs, the runner and the run store."""

from dualcba.experiments.runner import Hardware, Run, make_learner
from dualcba.experiments.spec import SETTINGS, Spec, make_specs, read_toml
from dualcba.experiments.store import check_free, read_results, write_result

__all__ = [
    "SETTINGS", "Hardware", "Run", "Spec", "check_free", "make_learner", "make_specs",
    "read_results", "read_toml", "write_result",
]  # fmt: skip
