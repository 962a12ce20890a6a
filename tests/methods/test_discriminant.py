"""The linear discriminant of the memory's features, as the read-out `lda`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from dualcba import Dataset, Learner
from dualcba.methods.discriminant import Discriminant, shrink

Make = Callable[..., Any]


def features(learner: Learner, x: torch.Tensor) -> Any:
    """Return the normalised features of raw samples, within `evaluating`."""
    h = learner.method.outputs(learner.parts.context.transform(x))[1].double().numpy()
    return h / np.linalg.norm(h, axis=1, keepdims=True).clip(1e-12)


def oracle(h: Any, stored: Any, y: Any, C: int) -> Any:
    """Return −½·(h − m)ᵀ Σ⁻¹ (h − m) of each class, but for what all classes share."""
    means = np.stack([stored[y == c].mean(0) if (y == c).any() else h[0] * 0 for c in range(C)])
    covariance, _ = oas(stored - means[y], assume_centered=True)
    weight = np.linalg.solve(covariance, means.T)
    scores = h @ weight - 0.5 * (means.T * weight).sum(0)
    return np.where(np.isin(np.arange(C), y), scores, -np.inf)


def standard(scores: Any) -> Any:
    """Return scores with mean 0 and norm 1 over the classes that have one."""
    known = np.isfinite(scores[0])
    found = scores[:, known] - scores[:, known].mean(1, keepdims=True)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("method", ["er", "derpp-cba", "er+mkd-dual-cba"])
def test_predictions_are_the_discriminant_of_the_memory(
    method: str, statistics: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(method, readout="lda", ibn=statistics == "ibn"))
    memory, x = learner.memory, images.test_x
    with learner.evaluating(statistics):
        h, stored = (features(learner, part) for part in (x, memory.x[: memory.filled]))
        scores = learner.scores(x).double()
        z = learner.method.scores(learner.parts.context.transform(x)).double().numpy()
    want = oracle(h, stored, memory.y[: memory.filled].numpy(), learner.num_classes)
    finite = np.isfinite(want)
    assert 0 < finite.sum() < finite.size
    assert (np.isfinite(scores.numpy()) == finite).all()
    np.testing.assert_allclose(standard(scores.numpy()), standard(want), atol=2e-3)
    assert learner.predict(x).tolist() == scores.argmax(1).tolist()
    known = finite[0]
    np.testing.assert_allclose(scores.numpy()[:, known].std(1), z[:, known].std(1), rtol=1e-4)


def test_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 200)
    h = rng.normal(size=(200, 6)) + 2 * rng.normal(size=(4, 6))[y]
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    means = np.stack([h[y == c].mean(0) for c in range(4)])
    _, shrinkage = oas(h - means[y], assume_centered=True)
    found = Discriminant(4, torch.zeros(4, 6))
    found.update(torch.from_numpy(h), torch.from_numpy(y))
    found.finish()
    z = torch.from_numpy(rng.normal(size=(200, 4)))
    got = found.scores(z, torch.from_numpy(h)).numpy()
    priors = [0.25] * 4
    theirs = LinearDiscriminantAnalysis(
        solver="lsqr", shrinkage=shrinkage, priors=np.bincount(y) / 200
    )
    theirs.fit(h, y)
    want = theirs.decision_function(h) - np.log(theirs.priors_) + np.log(priors)
    np.testing.assert_allclose(standard(got), standard(want), atol=2e-3)


@pytest.mark.parametrize("n", [2, 3, 40])
def test_the_shrinkage_is_that_of_scikit_learn(n: int) -> None:
    """With two samples the formula gives 1.5, of which at most 1 is used."""
    x = np.eye(6)[:2] if n == 2 else np.random.default_rng(n).normal(size=(n, 6))
    want, _ = oas(x, assume_centered=True)
    got = shrink(torch.from_numpy(x.T @ x / n), torch.tensor(n))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_unlabelled_samples_are_left_out_and_without_others_the_logits_decide() -> None:
    rng = torch.Generator().manual_seed(0)
    h, z = (torch.randn(9, n, generator=rng) for n in (4, 3))
    y = torch.tensor([0, 1, 2, 0, 1, 2, -1, -1, -1])
    one, other = (Discriminant(3, torch.zeros(3, 4)) for _ in range(2))
    for found, n in ((one, 9), (other, 6)):
        found.update(h[:n], y[:n])
        found.finish()
    torch.testing.assert_close(one.scores(z, h), other.scores(z, h))
    one.clear()
    assert torch.equal(one.scores(z, h), z)
    one.update(h[6:], y[6:])
    one.finish()
    assert torch.equal(one.scores(z, h), z)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_without_variance_the_nearest_mean_decides(scale: float) -> None:
    """One sample of each class, or features that are all zero."""
    found = Discriminant(3, torch.zeros(3, 4))
    h = scale * torch.eye(4)[:3]
    found.update(h, torch.arange(3))
    found.finish()
    scores = found.scores(torch.zeros(3, 3), h)  # without any logits too
    assert scores.isfinite().all()
    assert scale == 0 or scores.argmax(1).tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_on_a_gpu(make_learner: Make, teach: Make, images: Dataset) -> None:
    given = {"device": "cuda", "precision": "fp32", "readout": "lda", "ibn": True}
    learner, other = (teach(make_learner("er", engine=e, **given)) for e in ("eager", "captured"))
    for _ in range(4):  # often enough to be captured
        teach(other, tasks=1)
        other.predict(images.test_x)
    other.load_state_dict(learner.state_dict())
    p, q = (one.predict_proba(images.test_x) for one in (learner, other))
    torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)
