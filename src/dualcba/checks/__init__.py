"""The contract of a learner, as a suite that anyone may run on any method of their own."""

from dualcba.checks.states import held_bytes
from dualcba.checks.suite import CHECKS, MakeLearner, check_learner

__all__ = ["CHECKS", "MakeLearner", "check_learner", "held_bytes"]
