"""Any-time evaluation, scores, and recorders of further measurements of a run."""

from dualcba.evaluation.alignment import Alignment
from dualcba.evaluation.evaluator import ANYTIME, Evaluator
from dualcba.evaluation.neighbours import Neighbours
from dualcba.evaluation.prequential import Prequential
from dualcba.evaluation.random_features import RandomFeatures
from dualcba.evaluation.recorders import Clock, Predictions, Recorder, Scoring, Transitions
from dualcba.evaluation.scores import interval, summarize
from dualcba.evaluation.task_aware import TaskAware
from dualcba.prediction import STATISTICS

__all__ = [
    "ANYTIME",
    "RECORDERS",
    "STATISTICS",
    "Clock",
    "Evaluator",
    "Recorder",
    "Scoring",
    "interval",
    "summarize",
]

RECORDERS: dict[str, type[Recorder]] = {
    "predictions": Predictions,
    "transitions": Transitions,
    "alignment": Alignment,
    "prequential": Prequential,
    "neighbours": Neighbours,
    "random-features": RandomFeatures,
    "task-aware": TaskAware,
}
"""The values of `--record`."""
