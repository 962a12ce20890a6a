"""A conformance suite for learners: run `check_learner` on a learner with your own method."""

from dualcba.checks.runs import MakeLearner
from dualcba.checks.states import held_bytes
from dualcba.checks.suite import CHECKS, check_learner

__all__ = ["CHECKS", "MakeLearner", "check_learner", "held_bytes"]
