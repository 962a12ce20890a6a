"""ER-ACE against NumPy: the classes in each softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualcba.adaptors.adaptor import ADAPTORS
from dualcba.adaptors.hypergradient import hypergradient
from dualcba.losses import identity
from dualcba.methods import Method
from dualcba.methods.er_ace import ERACE
from dualcba.methods.ss_il import SSIL

Make = Callable[..., Any]


def by_hand(z: Any, y: Any, classes: list[int]) -> float:
    """Mean cross-entropy over these classes only."""
    values = []
    for row, label in zip(z.detach().numpy(), y.tolist(), strict=True):
        values.append(np.log(np.exp(row[classes]).sum()) - row[label])
    return float(np.mean(values))


def test_the_softmax_of_new_samples_has_the_classes_of_the_batch_and_the_unseen(
    bench: Make,
) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])  # 4 and 5 are unseen
    new, mem = b.batch([2, 2, 2], 1), b.batch([0, 1, 3, 2], 2)
    want = by_hand(new.z, new.y, [2, 4, 5]) + by_hand(mem.z, mem.y, list(range(6)))
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_without_unseen_classes_it_has_those_of_the_batch(bench: Make) -> None:
    b = bench(ERACE(unseen=False))
    b.begin([0, 1], [2, 3])
    new, mem = b.batch([2, 3, 2], 1), b.batch([0, 1, 3, 2], 2)
    want = by_hand(new.z, new.y, [2, 3]) + by_hand(mem.z, mem.y, list(range(6)))
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)
    alone = b.batch([2, 2], 1)  # a single class leaves nothing to learn
    assert b.method.loss(alone, [], identity).item() == 0.0


def test_the_memory_term_is_zero_in_the_first_task(bench: Make) -> None:
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


def test_an_unannounced_class_is_in_the_softmax(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])
    new = b.batch([0, 2, 5], 3)
    want = by_hand(new.z, new.y, [0, 2, 4, 5])
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_does_not_change_the_class_sets(bench: Make) -> None:
    b = bench(ERACE())
    b.begin([0, 1], [2, 3])
    before = b.sets.seen.clone()
    b.method.loss(b.batch([5], 1), [], identity)
    assert torch.equal(b.sets.seen, before)


@pytest.mark.parametrize("method", [ERACE, SSIL])
@pytest.mark.parametrize("kind", ["cba", "dual-cba"])
def test_the_closed_form_is_that_of_autograd(bench: Make, method: type[Method], kind: str) -> None:
    b = bench(method())
    b.begin([0, 1], [2, 3])
    batches = [b.batch([2, 3, 3], 1), b.batch([0, 1, 2], 2)]
    for k, batch in enumerate(batches):
        batch.z, batch.h, batch.rows = batch.z.detach(), batch.h.detach(), slice(3 * k, 3 * k + 3)
    adaptor = ADAPTORS[kind](b.sets, torch.Generator().manual_seed(0)).double()
    given = (adaptor, b.method, batches[0], batches[1:], b.batch([0, 1, 2, 3], 3))
    both = [hypergradient(*given, b.network.head, 0.1, closed_form=c) for c in (True, False)]
    assert b.method.closed_form
    assert any(g is not None and g.abs().max() > 0 for g in both[0])
    for one, other in zip(*both, strict=True):
        assert torch.allclose(one, other, atol=1e-10)
