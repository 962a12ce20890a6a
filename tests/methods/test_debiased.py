"""Logits without the bias that the memory shows, as the read-out `debiased`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from dualcba import Dataset, Learner
from dualcba.methods.debiased import Debiased, wrong_share

Make = Callable[..., Any]


def logits(learner: Learner, x: torch.Tensor) -> Any:
    """Return the logits of raw samples, within `evaluating`."""
    return learner.method.outputs(learner.parts.context.transform(x))[0].double().numpy()


def oracle(z: Any, stored: Any, y: Any) -> Any:
    """Return z less half of the log of each class's mean probability at samples of others."""
    p, C = np.exp(log_softmax(stored, axis=1)), z.shape[1]
    known = [c for c in range(C) if (y == c).any() and (y != c).any()]
    log_o = {c: np.log(p[y != c, c].mean()) for c in known}
    out = z.copy()
    for c in known:
        out[:, c] -= 0.5 * (log_o[c] - np.mean(list(log_o.values())))
    return out


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("method", ["er", "derpp-cba", "er+mkd-dual-cba"])
def test_scores_are_logits_less_the_bias(
    method: str, statistics: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(method, readout="debiased", ibn=statistics == "ibn"))
    memory, x = learner.memory, images.test_x
    with learner.evaluating(statistics):
        z, stored = (logits(learner, part) for part in (x, memory.x[: memory.filled]))
        scores = learner.scores(x).double().numpy()
    want = oracle(z, stored, memory.y[: memory.filled].numpy())
    assert not np.allclose(want, z, atol=1e-3)
    np.testing.assert_allclose(scores, want, atol=1e-4)
    assert learner.predict(x).tolist() == scores.argmax(1).tolist()


def test_a_known_prior_is_taken_off() -> None:
    """Of many classes that are equally hard, with logits raised by b, half of b comes off."""
    C = 300
    raised = torch.linspace(-1, 1, C)
    y = torch.arange(C)
    z = 12.0 * torch.nn.functional.one_hot(y, C) + raised
    found = Debiased(C, torch.zeros(C, 4))
    found.update(found.rows(z, torch.zeros(C, 4)), y)
    torch.testing.assert_close(found.bias, -0.5 * raised, atol=0.02, rtol=0)


def test_probabilities_too_small_for_floats_are_compared() -> None:
    z = torch.tensor([[300.0, 0.0, -100.0], [0.0, 400.0, 0.0], [0.0, 0.0, 500.0]])
    log_o, known = wrong_share(z.log_softmax(1), torch.arange(3))
    assert known.all()
    assert log_o.isfinite().all()
    assert log_o[1] < -290  # e⁻³⁰⁰ is 0 in float32
    z[1:, 0] = -torch.inf  # class 0 has no probability at all from samples of others
    assert wrong_share(z.log_softmax(1), torch.arange(3))[1].tolist() == [False, True, True]


@pytest.mark.parametrize("y", [[], [1, 1, 1], [-1, -1]])
def test_without_samples_of_two_classes_nothing_is_corrected(y: list[int]) -> None:
    found = Debiased(3, torch.zeros(3, 4))
    z = torch.randn(len(y), 3)
    found.update(found.rows(z, z), torch.tensor(y, dtype=torch.long))
    assert found.bias.tolist() == [0.0, 0.0, 0.0]


def test_a_class_without_a_sample_keeps_its_logit() -> None:
    z = torch.tensor([[2.0, 0.0, -1.0, 0.5], [1.0, 3.0, -1.0, 0.5], [0.0, 1.0, -1.0, 4.0]])
    found = Debiased(4, torch.zeros(4, 4))
    found.update(found.rows(z, z), torch.tensor([0, 1, -1]))
    assert found.bias[2:].tolist() == [0.0, 0.0]
    assert found.bias[:2].abs().min() > 0
    assert float(found.bias.sum()) == pytest.approx(0.0, abs=1e-6)
    found.clear()
    assert torch.equal(found.scores(z, z), z)
