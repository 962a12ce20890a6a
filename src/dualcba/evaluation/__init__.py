"""Any-time evaluation, the scores of a continual run, and what else a run can record."""

from dualcba.evaluation.alignment import Alignment
from dualcba.evaluation.evaluator import ANYTIME, Evaluator
from dualcba.evaluation.recorders import Predictions, Recorder, Transitions
from dualcba.evaluation.scores import interval, summarize
from dualcba.prediction import NORMS

__all__ = ["ANYTIME", "NORMS", "RECORDERS", "Evaluator", "Recorder", "interval", "summarize"]

RECORDERS: dict[str, type[Recorder]] = {
    "predictions": Predictions,
    "transitions": Transitions,
    "alignment": Alignment,
}
"""What `--record` takes."""
