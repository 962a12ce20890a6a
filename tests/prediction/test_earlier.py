"""Pickles of learners of earlier versions, whose predictor was one object."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dualcba import Dataset, Learner
from dualcba.prediction.predictor import Predictor

Make = Callable[..., Learner]


def in_one_object(predictor: Predictor) -> dict[str, Any]:
    """Return the attributes as an earlier version had them."""
    own = dict(vars(predictor))
    ibn, means = vars(own.pop("ibn")), own.pop("means")
    old = {**own, **ibn, **vars(ibn["memory_pass"])}
    old |= {"_nearest": None, "_means": {}, "_rows": old.pop("rows")}
    if means is not None:
        old |= {"_nearest": means.nearest, "_means": means._cached}
    del old["memory_pass"]
    return old


@pytest.mark.parametrize("readout", ["head", "ncm", "both"])
def test_a_learner_goes_on(
    readout: str, images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner("er", readout=readout, ibn=True, buffer=60, lr=0.002)
    learner.new_task(range(6))
    batches = make_batches(1, steps=15)[0]
    for x, y in batches[:10]:
        learner.observe(x, y)
        learner.predict(images.test_x)
    other = copy.deepcopy(learner)
    made = Predictor.__new__(Predictor)
    made.__setstate__(in_one_object(other._predictor))
    assert vars(made).keys() == vars(other._predictor).keys()
    for name in ("ibn", "means"):
        new, old = getattr(made, name), getattr(other._predictor, name)
        assert new is old is None or vars(new).keys() == vars(old).keys()
    assert vars(made.ibn.memory_pass).keys() == vars(other._predictor.ibn.memory_pass).keys()
    other._predictor = made
    other = pickle.loads(pickle.dumps(other))
    for x, y in batches[10:]:
        for statistics in ("bn", "ibn"):
            answers = []
            for one in (learner, other):
                with one.evaluating(statistics):
                    answers.append(one.scores(images.test_x))
            assert torch.equal(*answers)
        assert torch.equal(learner.predict_proba(images.test_x), other.predict_proba(images.test_x))
        for one in (learner, other):
            one.observe(x, y)


def test_the_class_has_its_name_of_before() -> None:
    assert pickle.loads(b"cdualcba.prediction\nPredictor\n.") is Predictor
