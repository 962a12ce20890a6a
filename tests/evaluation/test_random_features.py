"""The control of random features against NumPy and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import oas

from dualcba import Dataset
from dualcba.evaluation import random_features
from dualcba.experiments import Hardware, Run, Spec
from dualcba.methods.discriminant import ShrinkageLDA
from dualcba.randomness import generator


@pytest.mark.parametrize("setting", ["online", "semi-0.2"])
def test_accuracies_are_those_by_hand(
    setting: str, hard_images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_features, "FEATURES", 40)
    images = hard_images
    small: dict[str, Any] = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8}
    given = {**small, "method": "er", "buffer": 20, "eval_every": 0, "setting": setting, "seed": 3}
    run = Run(Spec(**given, record=["random-features"]), images, Hardware(device="cpu"))
    seen: list[tuple[Any, Any]] = []
    observe = run.learner.observe_on_device
    monkeypatch.setattr(
        run.learner, "observe_on_device",
        lambda x, y, *rest, **more: (seen.append((x, y)), observe(x, y, *rest, **more)),
    )  # fmt: skip
    list(run.steps())
    result = run.result()
    found = result["recordings"]["random-features"]
    assert all(scores["random_acc"] == found["acc"] for scores in result["scores"].values())
    rng = generator(3, "random-features")
    d = 3 * 8 * 8
    W, b = rng.normal(0, np.sqrt(2 / d), (d, 40)), 2 * np.pi * rng.random(40)

    def features(x: torch.Tensor) -> Any:
        pixels = run.learner.parts.context.transform(x).flatten(1).double().numpy()
        return np.sqrt(2 / 40) * np.cos(pixels @ W + b)

    y = np.concatenate([labels.numpy() for _, labels in seen])
    phi = np.concatenate([features(x) for x, _ in seen])[y >= 0]
    y = y[y >= 0]
    means = np.stack([phi[y == c].mean(0) for c in range(6)])
    covariance, _ = oas(phi - means[y], assume_centered=True)
    test, truth = features(images.test_x), images.test_y.numpy()
    gap = test[:, None] - means
    distance = np.einsum("ncd,de,nce->nc", gap, np.linalg.inv(covariance), gap)
    right = distance.argmin(1) == truth
    tasks = [100 * right[np.isin(truth, [2 * t, 2 * t + 1])].mean() for t in range(3)]
    assert found["tasks"] == pytest.approx(tasks)
    assert found["acc"] == pytest.approx(np.mean(tasks))
    assert 0 < found["acc"] < 100


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 3},
        {"setting": "semi-0.3", "labelled_batches": "cycled"},
        {"method": "icarl", "method_options": {"merge": True}},
    ],
)
def test_it_learns_from_each_sample_once(
    options: dict[str, Any], images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_features, "FEATURES", 40)
    small: dict[str, Any] = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8}
    given = {**small, "method": "er", "buffer": 20, "eval_every": 0, **options}
    run = Run(Spec(**given, record=["random-features"]), images, Hardware(device="cpu"))
    list(run.steps())
    run.result()
    came = np.unique(np.concatenate([one.rows.ravel() for each in run.schedule for one in each]))
    shown = run._visible_labels()[came[came < len(images.train_y)]].numpy()
    counts = run.recorders["random-features"].lda.counts  # type: ignore[attr-defined]
    assert counts.tolist() == np.bincount(shown[shown >= 0], minlength=6).tolist()


def test_order_does_not_matter_and_an_unseen_class_is_never_predicted() -> None:
    rng = np.random.default_rng(0)
    phi, y = torch.from_numpy(rng.normal(size=(30, 5))), torch.from_numpy(rng.integers(0, 3, 30))
    weights = []
    for order in (np.arange(30), rng.permutation(30)):
        lda = ShrinkageLDA(5, 4, torch.device("cpu"))
        lda.update(phi[order[:9]], torch.full((9,), -1))  # without a label
        for rows in np.array_split(order, 4):
            lda.update(phi[rows], y[rows])
        weights.append(lda.classifier())
    torch.testing.assert_close(*weights)
    assert weights[0][1][3] == -torch.inf
