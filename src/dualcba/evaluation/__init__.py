"""Any-time evaluation and the scores of a continual run."""

from dualcba.evaluation.evaluator import NORMS, Evaluator
from dualcba.evaluation.scores import interval, summarize

__all__ = ["NORMS", "Evaluator", "interval", "summarize"]
