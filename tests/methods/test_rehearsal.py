"""Tests of all methods with adaptable logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualcba.learner import Learner
from dualcba.methods import METHODS, SUFFIXES

NAMES = [
    f"{base}{end}"
    for base in ("er", "derpp", "clser", "rar", "er-ace", "ss-il", "las", "pcr", "gsa", "obc")
    for end in ("", "-cba", "-dual-cba", "-balanced-cba")
]


def test_all_adaptable_methods_are_listed() -> None:
    bases = [name for name, method in METHODS.items() if method.adaptable]
    known = {f"{base}-{suffix}" for base in bases for suffix in SUFFIXES}.union(bases)
    assert set(NAMES) == known


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("forward", ["split", "concat"])
def test_a_short_run_stays_finite(
    method: str, forward: str, make_learner: Callable[..., Learner], teach: Any
) -> None:
    learner = teach(make_learner(method, forward=forward))
    losses = learner.parts.loss_monitor.values[: learner.step]
    assert losses.isfinite().all()
    assert (losses > 0).all()
