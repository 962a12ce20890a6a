"""Predictions: under BN and IBN, at any time, without a trace in the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.data import disjoint
from dualcba.evaluation import Evaluator
from dualcba.normalization.statistics import batch_norms
from dualcba.prediction.memory_pass import MemoryPass
from dualcba.randomness import generator

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]

METHODS = ["er", "er-cba", "er-dual-cba"]


def test_a_pass_over_the_memory_is_drawn_by_the_seed_and_the_step(
    images: Dataset, make_learner: Make, teach: Teach, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float]] = []
    over_all = MemoryPass.over_all

    def noticed(self: MemoryPass, rng: np.random.Generator) -> None:
        drawn.append((learner.step, copy.deepcopy(rng).random()))
        over_all(self, rng)

    monkeypatch.setattr(MemoryPass, "over_all", noticed)
    learner = teach(make_learner("er", seed=3), tasks=3)
    for _ in range(2):
        for _ in range(2):
            with learner.evaluating("ibn"):
                pass
        learner.observe(images.train_x[:8], images.train_y[:8])
    assert drawn == [(step, generator(3, "ibn", step).random()) for step in (15, 16)]


def test_a_state_of_the_same_step_is_predicted_with_its_own_statistics(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    given = {"ibn": True, "ibn_refresh": "full"}
    one, other = (teach(make_learner("er", seed=k, **given), tasks=3) for k in (0, 1))
    before, want = (learner.predict_proba(images.test_x) for learner in (one, other))
    one.load_state_dict(other.state_dict())
    assert not torch.equal(before, want)
    assert torch.equal(one.predict_proba(images.test_x), want)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ibn", [False, True])
def test_predicting_and_evaluating_change_no_byte(
    method: str, ibn: bool, images: Dataset, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(method, ibn=ibn), tasks=3)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=7)
    before = learner.state_dict()
    modes = [m.training for m in learner.network.modules()]
    momenta = [n.momentum for n in learner.parts.forward_pass.norm_layers]
    learner.predict(images.test_x)
    learner.predict_proba(images.test_x[:3])
    for kind in ("start", "anytime", "end", "end", "both"):
        evaluator.evaluate(kind)
    evaluator.accuracy()
    evaluator.result()
    assert differ(before, learner.state_dict()) == []
    assert [m.training for m in learner.network.modules()] == modes
    assert [n.momentum for n in learner.parts.forward_pass.norm_layers] == momenta
    assert all(n.track_running_stats for n in learner.parts.forward_pass.norm_layers)


@pytest.mark.parametrize("method", METHODS)
def test_answering_in_between_does_not_change_what_is_learnt(
    method: str, images: Dataset, make_learner: Make, make_batches: Any, differ: Differ
) -> None:
    talkative, silent = make_learner(method), make_learner(method)
    for k, batches in enumerate(make_batches(3)):
        for learner in (talkative, silent):
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            talkative.observe(x, y)
            talkative.predict(images.test_x[:4])
            silent.observe(x, y)
    assert differ(talkative.state_dict(), silent.state_dict()) == []


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
@pytest.mark.parametrize("ibn", [False, True])
def test_the_adaptor_takes_no_part_in_answers(
    method: str, ibn: bool, images: Dataset, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = teach(make_learner(method, ibn=ibn))
    evaluator = Evaluator(learner, images, disjoint(images, 3))

    def answers() -> tuple[Tensor, Tensor, list[Tensor]]:
        evaluator.evaluate("end")
        counts = [evaluator.counts[n][-1] for n in ("bn", "ibn")]
        return learner.predict(images.test_x), learner.predict_proba(images.test_x), counts

    classes, probabilities, counts = answers()
    assert learner.adaptor is not None
    for p in learner.adaptor.parameters():
        p.data.fill_(torch.nan)
    monkeypatch.setattr(learner.adaptor, "forward", None)
    monkeypatch.setattr(learner.adaptor, "adapt", None)
    learner._predictor.forget()  # have IBN estimated anew
    again = answers()
    assert torch.equal(again[0], classes)
    assert torch.equal(again[1], probabilities)
    assert all(torch.equal(a, b) for a, b in zip(again[2], counts, strict=True))


def test_probabilities_are_the_networks_own(
    images: Dataset, make_learner: Make, teach: Any
) -> None:
    learner = teach(make_learner("er", ibn=False))
    x = images.test_x
    p = learner.predict_proba(x)
    network = copy.deepcopy(learner.network.module).eval()
    with torch.no_grad():
        want = network(images.transform()(x)).softmax(1)
    torch.testing.assert_close(p, want)
    assert torch.equal(learner.predict(x), want.argmax(1))
    torch.testing.assert_close(p.sum(1), torch.ones(len(x)))


def test_answers_do_not_depend_on_their_company(
    images: Dataset, make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = teach(make_learner())
    together = learner.predict_proba(images.test_x)
    alone = torch.cat([learner.predict_proba(images.test_x[i : i + 1]) for i in range(30)])
    monkeypatch.setattr("dualcba.prediction.predictor.PREDICT_BATCH", 7)
    torch.testing.assert_close(alone, together)
    torch.testing.assert_close(learner.predict_proba(images.test_x), together)


def test_answers_before_anything_was_learnt(images: Dataset, make_learner: Make) -> None:
    learner = make_learner()
    assert learner.task == -1
    assert learner.predict(images.test_x[:2]).shape == (2,)
    assert learner.predict_proba(images.test_x[:2]).shape == (2, 6)


def test_evaluating_may_be_nested(make_learner: Any, teach: Any, images: Any) -> None:
    learner = teach(make_learner())
    before = [(n.running_mean.clone(), n.running_var.clone()) for n in batch_norms(learner.network)]
    with learner.evaluating("ibn"):
        inside = [n.running_mean.clone() for n in batch_norms(learner.network)]
        learner.predict(images.test_x[:3])
        again = [n.running_mean.clone() for n in batch_norms(learner.network)]
    assert all(torch.equal(a, b) for a, b in zip(inside, again, strict=True))
    for layer, (mean, var) in zip(batch_norms(learner.network), before, strict=True):
        assert torch.equal(layer.running_mean, mean)
        assert torch.equal(layer.running_var, var)


@pytest.mark.parametrize(
    ("method", "options"), [("er", {}), ("er", {"readout": "ncm"}), ("icarl", {})]
)
@pytest.mark.parametrize("ways", [["ibn", "bn"], ["bn", "ibn", "bn"], ["ibn", "ibn", "bn"]])
def test_nested_evaluations_have_the_statistics_that_they_name(
    method: str, options: Any, ways: list[str], make_learner: Any, teach: Any, images: Any
) -> None:
    x, want = images.test_x, {}
    for name in ("bn", "ibn"):
        learner = teach(make_learner(method, **options, ibn=False))
        with learner.evaluating(name):
            want[name] = learner.scores(x)
    assert not torch.equal(want["bn"], want["ibn"])
    learner = teach(make_learner(method, **options, ibn=False))

    def check(ways: list[str]) -> None:
        if not ways:
            assert torch.equal(learner.predict_proba(x), want["bn"].softmax(1))
            return
        with learner.evaluating(ways[0]):
            assert torch.equal(learner.scores(x), want[ways[0]])
            check(ways[1:])
            assert torch.equal(learner.scores(x), want[ways[0]])

    check(ways)
    assert torch.equal(learner.predict_proba(x), want["bn"].softmax(1))


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda learner, x, y: learner.observe(x, y), "observe"),
        (lambda learner, x, y: learner.new_task([2, 3]), "new_task"),
        (lambda learner, x, y: learner.end_task(), "end_task"),
        (lambda learner, x, y: learner.state_dict(), "state_dict"),
        (lambda learner, x, y: learner.load_state_dict({}), "load_state_dict"),
    ],
)
def test_nothing_is_learnt_or_saved_inside_evaluating(
    call: Any, name: str, statistics: str, make_learner: Any, teach: Any, images: Any, differ: Any
) -> None:
    learner = teach(make_learner("er-dual-cba"), tasks=1)
    before, x, y = learner.state_dict(), images.train_x[:4], images.train_y[:4] % 2
    with learner.evaluating(statistics):
        learner.predict(x)
        with pytest.raises(ValueError, match=f"{name} was called inside evaluating, expected it"):
            call(learner, x, y)
    assert differ(before, learner.state_dict()) == []
    learner.observe(x, y)


def test_evaluating_under_unknown_statistics(vectors: Make) -> None:
    with pytest.raises(ValueError, match="statistics is 'IBN', expected 'bn' or 'ibn'"):
        vectors().evaluating("IBN").__enter__()


def test_only_classes_that_were_seen(vectors: Make) -> None:
    learner = vectors(seen_only=True, buffer=20)
    x = np.random.default_rng(0).normal(size=(9, 5))
    assert torch.equal(learner.predict_proba(x), vectors(buffer=20).predict_proba(x))  # none yet
    learner.new_task([2])
    learner.observe(np.zeros((4, 5)), [2, 2, 2, 2])
    assert learner.predict(x).unique().tolist() == [2]
    assert learner.predict_proba(np.zeros((1, 5))).tolist() == [[0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("readout", ["head", "ncm", "both", "lda", "both-lda", "debiased"])
def test_scores_are_the_mean_over_an_image_and_its_mirror_image(
    readout: str, images: Dataset, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    one, two = (
        teach(make_learner("er-dual-cba", readout=readout, test_flip=flip), tasks=2)
        for flip in (False, True)
    )
    assert differ(one.state_dict(), two.state_dict()) == []  # training does not depend on it
    x = images.test_x
    with one.evaluating("ibn"):
        want = (one.scores(x) + one.scores(x.flip(-1))) / 2
        assert not torch.equal(want, one.scores(x))
    with two.evaluating("ibn"):
        assert torch.equal(two.scores(x), want)
    assert torch.equal(two.predict(x), two.predict(x.flip(-1)))
    assert torch.equal(two.snapshot().predict_proba(x), two.predict_proba(x))


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_predictions_can_be_corrected_by_the_adaptor(
    method: str, images: Dataset, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    one, two = (
        teach(make_learner(method, readout=readout, levels="joint"), tasks=2)
        for readout in ("head", "adapted")
    )
    assert differ(one.state_dict(), two.state_dict()) == []
    with one.evaluating("bn"), torch.no_grad():
        z = one.scores(images.test_x)
        want = z + one.adaptor(z)
    with two.evaluating("bn"):
        assert torch.equal(two.scores(images.test_x), want)
    assert not torch.equal(z, want)
    wanted = "readout is 'adapted', expected 'head' or .* or 'debiased' for snapshots and exports"
    with pytest.raises(ValueError, match=wanted):
        two.snapshot()


def test_without_an_adaptor_nothing_is_corrected(make_learner: Make) -> None:
    with pytest.raises(
        ValueError, match=r"^readout is 'adapted', expected [^\n]* without an adaptor$"
    ):
        make_learner("er", readout="adapted")


def test_vectors_have_no_mirror_image(vectors: Make) -> None:
    with pytest.raises(
        ValueError, match=r"^test_flip is True, expected False for samples of shape \(5,\): only"
    ):
        vectors(test_flip=True)


def test_an_ema_of_batches_of_one(vectors: Make) -> None:
    learner = vectors(batch_size=1, ibn=True, ibn_average="ema")
    learner.new_task([0, 1])
    for k in range(5):
        learner.observe(np.random.default_rng(k).normal(size=(2, 5)), [0, 1])
    assert learner.predict(np.zeros((1, 5))).shape == (1,)


def test_an_ema_leaves_no_sample_alone(vectors: Make) -> None:
    """Of three samples in batches of two, one would have no batch statistics."""
    learner = vectors(batch_size=2, ibn=True, ibn_average="ema")
    learner.new_task([0, 1])
    learner.observe(np.random.default_rng(0).normal(size=(3, 5)), [0, 1, 0])
    assert learner.predict(np.zeros((1, 5))).shape == (1,)
