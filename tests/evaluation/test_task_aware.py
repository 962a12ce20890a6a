"""Accuracy with the task known, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dualcba import Dataset
from dualcba.experiments import Hardware, Run, Spec


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("more", [{"class_order": "shuffled"}, {"readout": "ncm"}])
def test_accuracies_are_those_among_the_own_classes(
    statistics: str, more: dict[str, Any], hard_images: Dataset
) -> None:
    images = hard_images
    small: dict[str, Any] = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8}
    spec = Spec(**small, method="er", buffer=20, eval_every=0, record=["task-aware"], **more)
    run = Run(spec, images, Hardware(device="cpu"))
    list(run.steps())
    result = run.result()
    found, scores = result["recordings"]["task-aware"][statistics], result["scores"][statistics]
    with run.learner.evaluating(statistics):
        z = run.learner.scores(images.test_x).numpy()
    y, tasks = images.test_y.numpy(), []
    for task in run.stream:
        z_own, y_own = z[np.isin(y, task.classes)], y[np.isin(y, task.classes)]
        right = [max(task.classes, key=row.__getitem__) for row in z_own] == y_own
        tasks.append(100 * right.mean())
    assert found["tasks"] == pytest.approx(tasks)
    assert scores["task_aware_acc"] == found["acc"] == pytest.approx(np.mean(tasks))
    assert scores["task_aware_acc"] >= scores["acc"]
