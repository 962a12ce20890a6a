"""Predictions at any time: scores under BN or IBN statistics, which do not change the learner."""

from dualcba.prediction.predictor import STATISTICS, Predictor

__all__ = ["STATISTICS", "Predictor"]
