"""The nearest class mean: compared with NumPy, and as the read-out of any learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.checks import check_learner
from dualcba.data import disjoint
from dualcba.estimator import DualCBAClassifier
from dualcba.evaluation import Evaluator
from dualcba.experiments import Hardware, Run, Spec
from dualcba.memory import Indices, Memory, Reservoir
from dualcba.methods.er import ER
from dualcba.methods.nearest_mean import (
    NearestMean,
    class_means,
    class_sums,
    nearness,
    scores_by_means,
)
from dualcba.training.learner_state import ROWS

Make = Callable[..., Any]


def unit(h: NDArray) -> NDArray:
    """Features of length 1; a feature of zeros stays so."""
    return h / np.maximum(np.linalg.norm(h, axis=-1, keepdims=True), 1e-12)


def oracle(h: NDArray, stored: NDArray, y: NDArray, classes: int) -> NDArray:
    """Minus 8 times the squared distance to the mean of each class's normalised features."""
    out = np.full((len(h), classes), -np.inf)
    for c in np.unique(y):
        mean = unit(unit(stored[y == c]).mean(0))
        out[:, c] = -8 * ((unit(h) - mean) ** 2).sum(1)
    return out


def features(learner: Learner, x: Tensor) -> NDArray:
    context = learner.parts.context
    with torch.no_grad():
        return context.network(context.transform(x))[1].double().numpy()


def test_scores_are_distances_to_class_means() -> None:
    rng = np.random.default_rng(0)
    stored, h, y = rng.normal(size=(20, 5)), rng.normal(size=(7, 5)), rng.integers(0, 3, 20)
    sums, counts = class_sums(torch.from_numpy(unit(stored)), torch.from_numpy(y), 4)
    means = class_means(sums, counts)
    z = torch.zeros(7, 4, dtype=torch.float64)
    got = scores_by_means(z, torch.from_numpy(h), means, counts > 0)
    np.testing.assert_allclose(got.numpy(), oracle(h, stored, y, 4), atol=1e-12)


def test_distances_of_features_as_they_are() -> None:
    rng = np.random.default_rng(0)
    h, means = rng.normal(size=(7, 5)), rng.normal(size=(3, 5))
    got = nearness(torch.from_numpy(h), torch.from_numpy(means), normalise=False)
    want = -((h[:, None] - means) ** 2).sum(2)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)
    z, known = torch.zeros(7, 3, dtype=torch.float64), torch.tensor([True, True, True])
    both = (torch.from_numpy(a) for a in (h, means))
    np.testing.assert_allclose(scores_by_means(z, *both, known, normalise=False), want, atol=1e-12)


def test_without_a_mean_the_logits_decide() -> None:
    found, z = NearestMean(3, torch.zeros(3, 5)), torch.randn(4, 3)
    found.update(found.rows(z, torch.randn(4, 5)), torch.tensor([0, 1, 1, 2]))
    assert not torch.equal(found.scores(z, torch.randn(4, 5)), z)
    found.clear()
    assert torch.equal(found.scores(z, torch.randn(4, 5)), z)


# ---------------------------------------------------------------------- as a read-out


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("method", ["er", "derpp-cba", "clser-dual-cba"])
def test_predictions_are_the_nearest_mean_of_the_memory(
    method: str, statistics: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(method, readout="ncm", ibn=statistics == "ibn"))
    memory = learner.memory
    with learner.evaluating(statistics):
        h, stored = (features(learner, x) for x in (images.test_x, memory.x[: memory.filled]))
        scores = learner.scores(images.test_x)
    want = oracle(h, stored, memory.y[: memory.filled].numpy(), learner.num_classes)
    np.testing.assert_allclose(scores.numpy(), want, atol=1e-4)
    assert learner.predict(images.test_x).tolist() == scores.argmax(1).tolist()
    p = learner.predict_proba(images.test_x)
    torch.testing.assert_close(p, scores.softmax(1))
    assert p.sum(1).numpy() == pytest.approx(1)


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize(("other", "product"), [("ncm", "both"), ("lda", "both-lda")])
def test_both_read_outs_are_multiplied(
    other: str, product: str, statistics: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    names, x = ("head", other, product), images.test_x
    learners = [teach(make_learner("derpp-cba", readout=r, ibn=statistics == "ibn")) for r in names]
    head, near, both = (learner.predict_proba(x).double().numpy() for learner in learners)
    known = np.isin(np.arange(6), learners[0].memory.y[: learners[0].memory.filled].numpy())
    assert 0 < known.sum() < 6  # of the other classes only the head knows
    share = head[:, known].sum(1, keepdims=True)
    want = np.where(known, np.sqrt(head * near * share), head)
    np.testing.assert_allclose(both, want / want.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("readout", ["ncm", "lda", "debiased"])
def test_training_does_not_depend_on_the_read_out(
    readout: str, make_learner: Make, teach: Make, differ: Make, images: Dataset
) -> None:
    one, two = (make_learner("er-dual-cba", readout=name) for name in ("head", readout))
    for learner in (one, two):
        teach(learner)
        learner.predict(images.test_x)
    assert differ(one.state_dict(), two.state_dict()) == []
    assert not torch.equal(one.predict_proba(images.test_x), two.predict_proba(images.test_x))


def test_the_head_decides_while_the_memory_is_empty(make_learner: Make, images: Dataset) -> None:
    names = ("head", "ncm", "lda", "debiased", "both", "both-lda")
    head, *others = (make_learner("er", readout=n).predict_proba(images.test_x) for n in names)
    for probabilities in others:
        torch.testing.assert_close(head, probabilities)
    assert torch.equal(head, others[0])
    assert torch.equal(head, others[1])
    assert torch.equal(head, others[2])


def test_the_means_follow_every_step_and_every_load(
    make_learner: Make, make_batches: Make, images: Dataset
) -> None:
    learner = make_learner("er", readout="ncm")
    learner.new_task([0, 1])
    seen = []
    for x, y in make_batches()[0]:
        learner.observe(x, y)
        seen.append((learner.state_dict(), learner.predict_proba(images.test_x)))
    assert not torch.equal(seen[-1][1], seen[-2][1])
    state, want = seen[1]
    learner.load_state_dict(state)
    assert torch.equal(learner.predict_proba(images.test_x), want)


def test_means_are_computed_once_per_step_and_statistics(
    make_learner: Make, teach: Make, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = teach(make_learner("er", readout="ncm"))
    passes: list[int] = []
    means = learner._predictor.classifier
    update = means._pass_over_memory
    monkeypatch.setattr(means, "_pass_over_memory", lambda: (passes.append(1), update()))
    for statistics in ("bn", "ibn", "bn", "ibn"):
        with learner.evaluating(statistics):
            learner.scores(images.test_x)
    assert len(passes) == 2


@pytest.mark.parametrize("norm", ["none", "frozen", "trained"])
def test_features_are_kept_with_and_without_layers_that_ibn_estimates(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = nn.Identity() if norm == "none" else nn.BatchNorm1d(8)
    net = nn.Sequential(nn.Linear(5, 8), layer, nn.ReLU(), nn.Linear(8, 4)).train()
    if norm == "frozen":
        layer.eval()
    options: dict[str, Any] = {"readout": "ncm", "ibn": True, "buffer": 400, "batch_size": 4}
    learner = Learner(net, (5,), 4, method="er", dtype=torch.float32, lr=1e-4, **options)
    learner.new_task(range(4))
    rng = np.random.default_rng(0)

    def observe(n: int) -> None:
        y = rng.integers(0, 4, n)
        learner.observe((rng.normal(size=(n, 5)) + y[:, None]).astype(np.float32), y)

    x, passed = torch.arange(4.0)[:, None].expand(4, 5), []
    observe(400)
    learner.predict(x)
    outputs = learner.method.outputs
    monkeypatch.setattr(learner.method, "outputs", lambda v: (passed.append(len(v)), outputs(v))[1])
    for _ in range(20):
        observe(4)
        found = learner.predict_proba(x)
    assert sum(passed) < 20 * (4 + 4) + 2 * 32 + 20 * 4  # new rows, those of parts, predictions
    with learner.evaluating("ibn"):
        torch.testing.assert_close(found, learner.scores(x).softmax(1), atol=0.01, rtol=0)


@pytest.mark.parametrize("missing", ["features", "stale"])
def test_a_state_with_a_part_of_the_kept_features_has_none(
    missing: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner("er", readout="ncm", ibn=True))
    want, state = learner.predict_proba(images.test_x), learner.state_dict()
    tensors = dict(state["estimate"]["tensors"])
    tensors["estimate.features"] = torch.zeros_like(tensors["estimate.features"])
    del tensors[f"estimate.{missing}"]
    learner.load_state_dict({**state, "estimate": {**state["estimate"], "tensors": tensors}})
    torch.testing.assert_close(learner.predict_proba(images.test_x), want)


@pytest.mark.parametrize("loading", ["ncm", "lda", "debiased", "head"])
@pytest.mark.parametrize("saving", ["ncm", "debiased"])
@pytest.mark.parametrize("width", [6, 16])
def test_another_read_out_does_not_use_what_was_kept(
    width: int, saving: str, loading: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    """With as many features as outputs both have the same shape."""

    def make(readout: str) -> Learner:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(192, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 6),
        )  # fmt: skip
        learner: Learner = make_learner("er", net, readout=readout, ibn=True)
        return learner

    learner = teach(make(saving))
    learner.predict(images.test_x)
    state = learner.state_dict()
    estimate = state["estimate"]
    kept = {k: t for k, t in estimate["tensors"].items() if k not in ROWS}
    assert len(kept) < len(estimate["tensors"])
    found, wanted = make(loading), make(loading)
    found.load_state_dict(state)
    wanted.load_state_dict({**state, "estimate": {**estimate, "tensors": kept}})
    want = wanted.predict_proba(images.test_x)
    torch.testing.assert_close(found.predict_proba(images.test_x), want)


def test_a_prediction_that_is_interrupted_leaves_no_old_feature(
    make_learner: Make, teach: Make, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, other = (teach(make_learner("er", readout="ncm", ibn=True)) for _ in range(2))
    learner.predict(images.test_x)
    for one in (learner, other):
        for _ in range(4):  # more samples than the memory holds: all of it is due
            one.observe(images.train_x[:8], images.train_y[:8] % 2)
    keep = learner._predictor.ibn.moving.keep

    def interrupted(task: Any) -> None:
        keep(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(learner._predictor.ibn.moving, "keep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.predict(images.test_x)
    monkeypatch.undo()
    want = other.predict_proba(images.test_x)
    torch.testing.assert_close(learner.predict_proba(images.test_x), want)


def test_a_memory_that_chooses_rows_as_it_writes(make_learner: Make, images: Dataset) -> None:
    class Keyed(Reservoir):
        """Its slots are no rows before they are written."""

        def slots(self, n: int, rng: np.random.Generator) -> Indices:
            return super().slots(n, rng) + 1000

        def write(self, slots: Tensor, x: Tensor, y: Tensor, columns: Any) -> None:
            super().write(slots - 1000, x, y, columns)

    class Mine(ER):
        def make_memory(self, size: int, shape: Any, dtype: torch.dtype, C: int) -> Memory:
            return Keyed(size, shape, dtype)

    def found(refresh: str) -> Tensor:
        learner = make_learner(Mine(), readout="ncm", ibn=True, ibn_refresh=refresh)
        learner.new_task(range(6))
        learner.observe(images.train_x[:8], images.train_y[:8])
        return learner.predict_proba(images.test_x)  # type: ignore[no-any-return]

    assert torch.equal(found("parts"), found("full"))


def test_nested_evaluations_restore_the_means(
    make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner("er", readout="ncm"))
    with learner.evaluating("bn"):
        before = learner.scores(images.test_x)
        with learner.evaluating("ibn"):
            assert not torch.equal(learner.scores(images.test_x), before)
        assert torch.equal(learner.scores(images.test_x), before)


def test_seen_only_and_classes_without_samples(
    make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner("er", readout="ncm", seen_only=True))
    stored = learner.memory.y[: learner.memory.filled].unique().tolist()
    p = learner.predict_proba(images.test_x)
    assert p.isfinite().all()
    assert p.sum(0).nonzero().flatten().tolist() == stored


def test_the_evaluator_counts_the_read_out(
    make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner("er", readout="ncm"), tasks=3)
    stream = disjoint(images, 3)
    evaluator = Evaluator(learner, images, stream)
    evaluator.evaluate("end", 2)
    for statistics in ("bn", "ibn"):
        with learner.evaluating(statistics):
            right = learner.scores(images.test_x).argmax(1) == images.test_y
        accuracy = np.mean([100 * right[torch.from_numpy(t.test)].double().mean() for t in stream])
        assert evaluator.accuracy(statistics) == pytest.approx(accuracy)


def test_a_run_and_an_estimator_take_the_option(images: Dataset) -> None:
    spec = Spec(method="er", buffer=20, tasks=3, network="mlp", readout="ncm", eval_every=0)
    run = Run(spec, images, Hardware(device="cpu"))
    assert len(list(run.steps())) == run.total
    assert run.result()["spec"]["readout"] == "ncm"
    classifier = DualCBAClassifier(
        method="er", learner_options={"readout": "ncm"}, epochs=1, random_state=0
    )
    x, y = images.train_x.numpy(), images.train_y.numpy()
    assert classifier.fit(x, y).predict(x).shape == y.shape


@pytest.mark.parametrize("readout", ["ncm", "both", "lda", "both-lda", "debiased"])
def test_a_learner_with_the_read_out_passes_all_checks(
    readout: str, make_learner: Make, make_net: Make
) -> None:
    check_learner(
        lambda seed: make_learner("er-dual-cba", make_net(seed), seed=seed, readout=readout),
        skip=["memory", "time"],
    )


@pytest.mark.gpu
@pytest.mark.parametrize("readout", ["ncm", "both", "lda", "both-lda", "debiased"])
@pytest.mark.parametrize("statistics", ["bn", "ibn"])
def test_captured_evaluations_equal_eager_ones(
    statistics: str, readout: str, make_learner: Make, make_batches: Make, images: Dataset,
    exact: None,
) -> None:  # fmt: skip
    found = []
    for engine in ("eager", "captured"):
        given = {"device": "cuda", "precision": "fp32", "engine": engine}
        learner = make_learner("er", readout=readout, **given)
        evaluator = Evaluator(learner, images, disjoint(images, 3))
        evaluator.evaluate("start")
        accuracies = []
        for k, batches in enumerate(make_batches(steps=8)):
            learner.new_task([2 * k, 2 * k + 1])
            for x, y in batches:
                learner.observe(x, y)
                evaluator.evaluate("both", k)
                accuracies.append(evaluator.accuracy(statistics))
        found.append(accuracies)
    assert found[0] == pytest.approx(found[1], abs=4.0)  # a near tie may fall either way


def test_probabilities_tell_classes_apart(make_learner: Make, teach: Any, images: Dataset) -> None:
    learner = teach(make_learner("er", readout="ncm", ibn=True))
    probabilities = learner.predict_proba(images.test_x)
    right = learner.predict(images.test_x) == images.test_y
    assert float(probabilities.max(1).values.mean()) > 0.5 * float(right.float().mean())
