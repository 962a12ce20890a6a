"""MLflow: logs to `$MLFLOW_TRACKING_URI`, or to a database in the folder of the results.

Show the database with `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db`.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from dualcba.report.trackers.protocol import TrackedRun

MOST = 500
"""Metrics per request; a server accepts at most 1000."""


class MLflow:
    """Logs through MLflow's client, so several runs can be open at a time."""

    def start(self, run: TrackedRun) -> None:
        """Create a run with the spec as parameters, in an experiment named after the folder."""
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(
                logging.WARNING
            )  # they log the creation of the database
        given = os.environ.get("MLFLOW_TRACKING_URI")
        out = run.out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(given or f"sqlite:///{out / 'mlflow.db'}")
        found = self.client.get_experiment_by_name(run.project)
        artifacts = None if given else (out / "mlartifacts").as_uri()
        experiment = (
            found.experiment_id
            if found
            else self.client.create_experiment(run.project, artifact_location=artifacts)
        )
        self.id: str = self.client.create_run(experiment, run_name=run.name).info.run_id
        self.waiting: list[Metric] = []
        params = [Param(name, str(value)) for name, value in run.spec.items()]
        self.client.log_batch(self.id, params=params)
        self.client.log_dict(self.id, dict(run.spec), "spec.json")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics in batches."""
        now = int(1000 * time.time())
        self.waiting += [Metric(name, value, now, step) for name, value in values.items()]
        if len(self.waiting) >= MOST:
            self._send()

    def _send(self) -> None:
        for k in range(0, len(self.waiting), MOST):
            self.client.log_batch(self.id, metrics=self.waiting[k : k + MOST])
        self.waiting = []

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        """Log the scores as metrics, and the figures as files; end the run."""
        self.log(0, scores)
        self._send()
        with tempfile.TemporaryDirectory() as folder:
            for name, png in figures.items():
                path = Path(folder, f"{name}.png")
                path.write_bytes(png)
                self.client.log_artifact(self.id, str(path), "figures")
        self.client.set_terminated(self.id, "FINISHED" if scores else "KILLED")
