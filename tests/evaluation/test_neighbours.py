"""Class means, nearest samples and the discriminant of the memory, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.covariance import oas

from dualcba import Dataset
from dualcba.experiments import Hardware, Run, Spec


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize(
    ("method", "buffer", "present"), [("er-dual-cba", 20, 6), ("icarl", 20, 6), ("er", 6, 4)]
)
def test_accuracies_are_those_by_hand(
    statistics: str, method: str, buffer: int, present: int, hard_images: Dataset
) -> None:
    """Also where the memory has no sample of a class."""
    small: dict[str, Any] = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8}
    spec = Spec(**small, method=method, buffer=buffer, eval_every=0, record=["neighbours"])
    run, images = Run(spec, hard_images, Hardware(device="cpu")), hard_images
    list(run.steps())
    result = run.result()
    found, scores = result["recordings"]["neighbours"][statistics], result["scores"][statistics]
    assert scores["ncm_acc"] == found["class_mean"]["acc"]
    assert scores["nn_acc"] == found["sample"]["acc"]
    assert scores["lda_acc"] == found["discriminant"]["acc"]
    learner, transform = run.learner, run.learner.parts.context.transform
    with learner.evaluating(statistics):
        stored, test = (
            learner.network(transform(x))[1].numpy()
            for x in (learner.memory.x[: learner.memory.filled], images.test_x)
        )
    stored, test = (h / np.linalg.norm(h, axis=1, keepdims=True) for h in (stored, test))
    labels, y = learner.memory.y[: learner.memory.filled].numpy(), images.test_y.numpy()
    classes = np.unique(labels)
    assert len(classes) == present
    means = np.stack([stored[labels == c].mean(0) for c in classes])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    own = np.stack([stored[labels == c].mean(0) for c in classes]).astype(np.float64)
    centred = stored - own[np.searchsorted(classes, labels)]
    inverse = np.linalg.inv(oas(centred, assume_centered=True)[0])
    for name, points, of, metric in (
        ("class_mean", means, classes, np.eye(len(inverse))),
        ("sample", stored, labels, np.eye(len(inverse))),
        ("discriminant", own, classes, inverse),
    ):
        between = test[:, None] - points
        right = of[np.einsum("nkd,de,nke->nk", between, metric, between).argmin(1)] == y
        tasks = [100 * right[np.isin(y, [2 * t, 2 * t + 1])].mean() for t in range(3)]
        assert found[name]["tasks"] == pytest.approx(tasks)
        assert found[name]["acc"] == pytest.approx(np.mean(tasks))
        assert 0 < found[name]["acc"] < 100
    assert len({each["acc"] for each in found.values()}) > 1
