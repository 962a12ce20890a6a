"""ER-ACE against NumPy: who competes with whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualcba.losses import identity
from dualcba.methods.er_ace import ERACE

Make = Callable[..., Any]


def by_hand(z: Any, y: Any, classes: list[int]) -> float:
    """Mean cross-entropy over these classes only."""
    values = []
    for row, label in zip(z.detach().numpy(), y.tolist(), strict=True):
        values.append(np.log(np.exp(row[classes]).sum()) - row[label])
    return float(np.mean(values))


def test_new_samples_compete_within_the_batch_and_with_the_unseen(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])  # 4 and 5 are still to come
    new, mem = b.batch([2, 2, 2], 1), b.batch([0, 1, 3, 2], 2)
    want = by_hand(new.z, new.y, [2, 4, 5]) + by_hand(mem.z, mem.y, list(range(6)))
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_memory_has_no_say_in_the_first_task(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1])
    new, mem = b.batch([0, 0, 1], 1), b.batch([0, 1], 2)
    want = by_hand(new.z, new.y, [0, 1, 2, 3, 4, 5])
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_absent_seen_classes_get_no_gradient_from_the_new_batch(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])
    new = b.batch([2, 2], 1)
    slope = torch.autograd.grad(b.method.loss(new, [], identity), new.z)[0]
    assert (slope[:, [0, 1, 3]] == 0).all()
    assert (slope[:, [2, 4, 5]] != 0).all()


def test_a_class_that_comes_unannounced_takes_part(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])
    new = b.batch([0, 2, 5], 3)
    want = by_hand(new.z, new.y, [0, 2, 4, 5])
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_leaves_the_class_sets_alone(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])
    before = b.sets.seen.clone()
    b.method.loss(b.batch([5], 1), [], identity)
    assert torch.equal(b.sets.seen, before)
