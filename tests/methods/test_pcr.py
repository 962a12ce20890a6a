"""PCR against NumPy: a contrastive loss with the weights of the classes in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import inside, numbers

from dualcba.losses import Batch
from dualcba.methods.pcr import PCR


def test_loss_and_gradient_against_numpy(make_learner: Any, teach: Any) -> None:
    """Written as in the paper, with a sum over samples in the denominator."""
    learner = make_learner("pcr-dual-cba")

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        parts = [new, *mem, *(b.views["raw"] for b in (new, *mem))]
        z = np.concatenate([numbers(b.z) for b in parts])
        y = np.concatenate([numbers(b.y) for b in parts])
        each, grads, own = [], [], []
        for i in range(len(y)):
            shares = np.exp([z[i, c] for c in y])  # one contrast per sample
            each.append(-z[i, y[i]] + np.log(shares.sum()))
            own.append(np.log((y == y[i]).sum()))
            grad = np.zeros(6)
            np.add.at(grad, y, shares / shares.sum())
            grad[y[i]] -= 1
            grads.append(grad / len(y))
        terms = learner.method.terms(new, mem)
        loss = learner.method.loss(new, mem, lambda b: b.z).item()
        assert loss == pytest.approx(np.mean(each) - np.mean(own), rel=1e-6)  # a constant less
        found = np.concatenate([numbers(t.gradient(t.batch.z)) for t in terms])
        np.testing.assert_allclose(found, grads, rtol=1e-6, atol=1e-9)

    seen = inside(learner, look)
    teach(learner, tasks=3)
    assert len(seen) == 6


def test_logits_are_cosines(make_learner: Any, teach: Any, images: Any) -> None:
    learner = teach(make_learner("pcr", method_options={"temperature": 0.5}))
    with torch.no_grad(), learner.evaluating():
        z, h = learner.network(learner.parts.context.transform(images.test_x))
    h, w = numbers(h), numbers(learner.network.head.weight)
    cos = h @ w.T / np.linalg.norm(h, axis=1)[:, None] / np.linalg.norm(w, axis=1)
    np.testing.assert_allclose(numbers(z), cos / 0.5, atol=1e-5)
    assert [name for name, _ in learner.network.head.named_parameters()] == ["weight"]
    with pytest.raises(ValueError, match=r"temperature is 0.0, expected a number above 0"):
        PCR(temperature=0.0)
    with pytest.raises(ValueError, match=r"temperature is '1', expected a number above 0"):
        PCR(temperature="1")  # type: ignore[arg-type]
