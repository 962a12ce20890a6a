"""Predictions after each step re-estimate IBN's statistics from parts of the memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.normalization.refresh import PART, Due, MovingEstimate
from dualcba.prediction.memory_classifier import MemoryClassifier

Make = Callable[..., Learner]
Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture
def batches(make_batches: Any) -> Batches:
    """Return the batches of one task."""
    return list(make_batches(1)[0])


def make(make_learner: Make, **options: Any) -> Learner:
    """Return a learner whose weights move so little that parts of the memory are enough."""
    learner = make_learner("er-dual-cba", buffer=300, batch_size=8, lr=0.002, **options)
    learner.new_task(list(range(learner.num_classes)))
    return learner


def exactly(learner: Learner, x: Tensor) -> Tensor:
    with learner.evaluating("ibn"):
        return learner.scores(x).softmax(1)


def many(batches: Batches, steps: int) -> Batches:
    return (batches * (steps // len(batches) + 1))[:steps]


def passed_rows(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each pass over some rows of the memory adds their number."""
    seen: list[int] = []
    memory_pass = learner._predictor.ibn.memory_pass
    pass_rows = memory_pass._pass

    def count(drawn: Any, part: slice, groups: int = 1) -> None:
        seen.append(len(drawn.rows[part]))
        pass_rows(drawn, part, groups)

    monkeypatch.setattr(memory_pass, "_pass", count)
    return seen


def test_at_most_one_sample_of_the_memory_per_observed_sample(
    images: Dataset, make_learner: Make, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make(make_learner)
    seen = passed_rows(learner, monkeypatch)
    observed = []
    for x, y in many(batches, 60):
        learner.observe(x, y)
        learner.predict(images.test_x[:4])
        observed.append(8 * learner.step)
        assert sum(seen) <= observed[-1]
    assert max(seen) <= PART
    assert sum(seen) > observed[-1] - 2 * PART


@pytest.mark.parametrize("way", ["straight", "loaded", "copied"])
@pytest.mark.parametrize("size", [1, 20])
def test_samples_are_counted_whatever_the_batch_size(
    size: int, way: str, images: Dataset, make_learner: Make, batches: Batches, monkeypatch: Any
) -> None:
    learner = make(make_learner)
    for x, y in many(batches, 30):
        learner.observe(x, y)
    learner.predict(images.test_x[:4])
    if way != "straight":
        for x, y in batches[:3]:
            learner.observe(x, y)  # 24 samples that no part has followed yet
        other = copy.deepcopy(learner) if way == "copied" else make(make_learner)
        if way == "loaded":
            other.load_state_dict(learner.state_dict())
        learner = other
    passed = passed_rows(learner, monkeypatch)
    x, y = images.train_x[:size], images.train_y[:size]
    for _ in range(80 // size):
        learner.observe(x, y)
        learner.predict(images.test_x[:4])
    assert sum(passed) == (2 * PART if way == "straight" else 3 * PART)


def test_an_estimate_of_an_earlier_version_is_gone_on_with(
    images: Dataset, make_learner: Make, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, other = make(make_learner), make(make_learner)
    for x, y in many(batches, 30):
        learner.observe(x, y)
    learner.predict(images.test_x[:4])
    learner.observe(x, y)
    state = learner.state_dict()
    state["estimate"]["observed"] = 8 * 31 - state["estimate"].pop("since")
    other.load_state_dict(state)
    passed = passed_rows(other, monkeypatch)
    for _ in range(3):
        assert sum(passed) == 0
        other.observe(x, y)
        other.predict(images.test_x[:4])
    assert sum(passed) == PART


def test_the_first_prediction_and_one_after_long_learning_are_exact(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner = make(make_learner)
    for k, (x, y) in enumerate(many(batches, 90)):
        learner.observe(x, y)
        if k in (20, 85):
            assert torch.equal(
                learner.predict_proba(images.test_x), exactly(learner, images.test_x)
            )
        elif k == 22:
            assert not torch.equal(
                learner.predict_proba(images.test_x), exactly(learner, images.test_x)
            )


def test_a_jump_of_the_weights_makes_the_next_prediction_exact(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner = make(make_learner)
    for x, y in many(batches, 21):
        learner.observe(x, y)
        before = learner.predict_proba(images.test_x)
    assert not torch.equal(before, exactly(learner, images.test_x))
    with torch.no_grad():
        for p in learner.network.parameters():
            p.mul_(1.5)
    learner.observe(x, y)
    assert torch.equal(learner.predict_proba(images.test_x), exactly(learner, images.test_x))


def test_the_first_prediction_of_a_task_is_exact(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner = make(make_learner)
    for x, y in many(batches, 30):
        learner.observe(x, y)
        learner.predict(images.test_x[:4])
    learner.end_task()
    assert torch.equal(learner.predict_proba(images.test_x), exactly(learner, images.test_x))


def test_parts_stay_close_to_the_whole_memory(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner, x = make(make_learner), images.test_x
    far = []
    for sample, label in many(batches, 60):
        learner.observe(sample, label)
        far.append(float((learner.predict_proba(x) - exactly(learner, x)).abs().mean()))
    assert 0 < max(far[10:]) < 0.02


def test_full_refresh_is_exact_after_each_step(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner = make(make_learner, ibn_refresh="full")
    for x, y in many(batches, 20):
        learner.observe(x, y)
        assert torch.equal(learner.predict_proba(images.test_x), exactly(learner, images.test_x))
    assert "estimate" not in learner.state_dict()


def test_evaluation_does_not_see_what_predictions_estimated(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    asked, quiet = make(make_learner), make(make_learner)
    for x, y in many(batches, 30):
        for learner in (asked, quiet):
            learner.observe(x, y)
        asked.predict(images.test_x[:4])
    assert torch.equal(exactly(asked, images.test_x), exactly(quiet, images.test_x))


@pytest.mark.parametrize("way", ["dict", "file"])
def test_a_loaded_learner_answers_as_the_saved_one_from_then_on(
    way: str, images: Dataset, make_learner: Make, batches: Batches, tmp_path: Path
) -> None:
    learner, other = make(make_learner), make(make_learner)
    for x, y in many(batches, 30):
        learner.observe(x, y)
        before = learner.predict_proba(images.test_x)
    if way == "dict":
        other.load_state_dict(learner.state_dict())
    else:
        learner.save(tmp_path / "learner.safetensors")
        other.load(tmp_path / "learner.safetensors")
    assert torch.equal(other.predict_proba(images.test_x), before)
    for x, y in many(batches, 12):
        for one in (learner, other):
            one.observe(x, y)
        answers = [one.predict_proba(images.test_x) for one in (learner, other)]
        assert torch.equal(*answers)
    other.load_state_dict({k: v for k, v in learner.state_dict().items() if k != "estimate"})
    assert torch.equal(other.predict_proba(images.test_x), exactly(other, images.test_x))


def test_a_failed_step_changes_no_answer(
    images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner = make(make_learner)
    for x, y in many(batches, 20):
        learner.observe(x, y)
        before = learner.predict_proba(images.test_x)
    with pytest.raises(ValueError, match="label"):
        learner.observe(x, y + learner.num_classes)
    assert torch.equal(learner.predict_proba(images.test_x), before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("task", [1], "'estimate.task' is \\[1\\], expected a count and a bool"),
        ("since", -1, "'estimate.since' is -1, expected a count"),
        ("observed", 8, "'estimate' is not valid, expected a dict of"),
        ("moved", float("nan"), "'estimate.moved' is nan, expected a number of at least 0"),
        ("tensors", {}, "has no entry 'estimate.0.mean'"),
        ("tensors", None, "has no .tensors."),
        ("nan", None, "'estimate.0.mean' has values that are not finite"),
        ("negative", None, "'estimate.0.var' has values below 0"),
    ],
)
def test_a_damaged_estimate_is_refused_and_changes_nothing(
    name: str, value: Any, message: str, images: Dataset, make_learner: Make, batches: Batches
) -> None:
    learner, other = make(make_learner), make(make_learner)
    learner.observe(*batches[0])
    learner.predict(images.test_x[:4])
    state = learner.state_dict()
    if name == "nan":
        state["estimate"]["tensors"]["estimate.0.mean"][0] = torch.nan
    elif name == "negative":
        state["estimate"]["tensors"]["estimate.0.var"][0] = -1.0
    else:
        state["estimate"][name] = value
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    assert other.step == 0


@pytest.mark.gpu
def test_parts_on_a_gpu_are_those_of_a_cpu(
    images: Dataset, make_learner: Make, batches: Batches, exact: None
) -> None:
    """Captured as a graph; a loaded learner goes on alike."""
    on_cpu = make(make_learner, precision="fp32")
    on_gpu = make(make_learner, precision="fp32", device="cuda")
    other = make(make_learner, precision="fp32", device="cuda")
    for k, (x, y) in enumerate(many(batches, 40)):
        answers = []
        for learner in (on_cpu, on_gpu):
            learner.observe(x, y)
            answers.append(learner.predict_proba(images.test_x))
        torch.testing.assert_close(*answers, rtol=1e-2, atol=1e-3)
        if k >= 30:
            other.load_state_dict(on_gpu.state_dict())
            assert torch.equal(other.predict_proba(images.test_x), answers[1])
    assert any(key[0] == "ibn part" for key in on_gpu.parts.engine.entries)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- class means


@pytest.mark.parametrize("readout", ["ncm", "both", "lda", "both-lda", "debiased"])
def test_class_means_are_those_of_rows_that_are_kept(
    readout: str, images: Dataset, make_learner: Make, batches: Batches, monkeypatch: Any
) -> None:
    """New rows and those of parts are computed anew, and a loaded or copied learner goes on."""
    learner, x = make(make_learner, readout=readout), images.test_x
    computed, far, update = [], [], MemoryClassifier._update_rows

    def count(means: MemoryClassifier, rows: Any) -> None:
        if means is learner._predictor.classifier:
            computed.append(int(rows.stale[: learner.memory.filled].sum()))
        update(means, rows)

    monkeypatch.setattr(MemoryClassifier, "_update_rows", count)
    for k, (new, y) in enumerate(many(batches, 60)):
        learner.observe(new, y)
        answers = learner.predict_proba(x)
        rows = learner._predictor.classifier.rows
        assert not rows.stale[: learner.memory.filled].any()
        far.append(float((answers - exactly(learner, x)).abs().mean()))
        if k in (5, 40):
            other, copied = make(make_learner, readout=readout), copy.deepcopy(learner)
            other.load_state_dict(learner.state_dict())
            for one in (learner, other, copied):
                one.observe(*batches[0])
            want = learner.predict_proba(x)
            assert torch.equal(other.predict_proba(x), want)
            assert torch.equal(copied.predict_proba(x), want)
    assert len(computed) == 62
    assert 8 * learner.step < sum(computed) <= 2 * 8 * learner.step
    assert max(far[10:]) < 0.05


@pytest.mark.parametrize(("saved", "loaded"), [("head", "both"), ("both", "head")])
def test_the_read_out_may_change_between_two_states(
    saved: str, loaded: str, images: Dataset, make_learner: Make, batches: Batches
) -> None:
    first, second = make(make_learner, readout=saved), make(make_learner, readout=loaded)
    for x, y in many(batches, 20):
        first.observe(x, y)
        first.predict(images.test_x)
    second.load_state_dict(first.state_dict())
    answers = second.predict_proba(images.test_x)
    assert answers.isfinite().all()
    assert float((answers - exactly(second, images.test_x)).abs().mean()) < 0.03


@pytest.mark.parametrize("on_outlier", ["raise", "skip"])
@pytest.mark.parametrize("readout", ["head", "ncm", "both", "lda", "both-lda", "debiased"])
def test_a_refused_step_changes_no_answer(
    readout: str, on_outlier: str, images: Dataset, make_learner: Make, batches: Batches,
    monkeypatch: Any,
) -> None:  # fmt: skip
    learner = make(make_learner, readout=readout, on_outlier=on_outlier)
    for x, y in many(batches, 50):
        learner.observe(x, y)
        before = learner.predict_proba(images.test_x)
    with (
        monkeypatch.context() as patch,
        pytest.raises(FloatingPointError) if (on_outlier == "raise") else nullcontext(),
    ):
        patch.setattr(
            type(learner.parts.context.transform), "normalize", lambda _, v: v.float() * torch.inf
        )
        learner.observe(*batches[0])
    assert learner.step == 50
    assert torch.equal(learner.predict_proba(images.test_x), before)


@pytest.mark.parametrize(("filled", "size"), [(1000, 32), (60, 15), (5, 2)])
def test_a_part_has_a_quarter_of_the_memory_and_at_most_32_samples(filled: int, size: int) -> None:
    estimate = MovingEstimate([])
    estimate.keep((0, True))
    for samples, parts in ((size - 1, 0), (1, 1), (1, 1)):
        estimate.observe(samples)
        assert estimate.due(filled, (0, True)) == Due(parts=parts, size=size)
    estimate.observe(filled - size - 2)
    assert not estimate.due(filled, (0, True)).whole
    estimate.observe(1)
    assert estimate.due(filled, (0, True)).whole


def test_weights_that_have_moved_far_need_one_exact_estimate() -> None:
    estimate = MovingEstimate([])
    estimate.keep((0, True))
    estimate.follow(torch.ones(4))
    assert not estimate.due(100, (0, True)).whole
    estimate.follow(1.1 * torch.ones(4))
    assert estimate.due(100, (0, True)).whole
    estimate.keep((0, True))
    assert not estimate.due(100, (0, True)).whole
