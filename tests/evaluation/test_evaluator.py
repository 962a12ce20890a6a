"""The evaluator against counting by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import Dataset, Learner
from dualcba.data import disjoint
from dualcba.evaluation import STATISTICS, Evaluator
from dualcba.normalization.statistics import batch_norms

Make = Callable[..., Learner]
Teach = Callable[..., Learner]


def by_hand(learner: Learner, data: Dataset, tasks: int) -> dict[str, list[float]]:
    """Percent correct per test task: BN by a plain forward, IBN by `predict`."""
    network = copy.deepcopy(learner.network.module).eval()
    with torch.no_grad():
        answers = {"bn": network(data.transform()(data.test_x)).argmax(1)}
    kept, learner._statistics = learner._statistics, "ibn"
    answers["ibn"] = learner.predict(data.test_x)
    learner._statistics = kept
    right = {k: (v == data.test_y).numpy() for k, v in answers.items()}
    stream = disjoint(data, tasks)
    return {k: [100 * float(v[t.test].mean()) for t in stream] for k, v in right.items()}


@pytest.mark.parametrize("batch_size", [None, 1, 7, 10, 30, 64])
@pytest.mark.parametrize("method", ["er", "er-dual-cba"])
def test_counts(
    batch_size: int | None, method: str, images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner(method, lr=0.1), tasks=3, steps=8)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=batch_size)
    evaluator.evaluate("end")
    want = by_hand(learner, images, 3)
    assert sum(want["bn"]) > 0
    for norm in STATISTICS:
        assert evaluator._table(norm)[0].tolist() == pytest.approx(want[norm])
        assert evaluator.accuracy(norm) == pytest.approx(np.mean(want[norm]))


def run(
    learner: Learner, images: Dataset, make_batches: Any, kinds: Callable[[int, bool], str | None]
) -> tuple[Evaluator, list[dict[str, list[float]]]]:
    """Three tasks of four steps, scored as `kinds` says; what was right at each point, by hand."""
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=8)
    truth = [by_hand(learner, images, 3)]
    evaluator.evaluate("start")
    for k, batches in enumerate(make_batches(3, steps=4)):
        learner.new_task([2 * k, 2 * k + 1])
        for i, (x, y) in enumerate(batches):
            learner.observe(x, y)
            kind = kinds(learner.step, i == 3)
            if kind:
                evaluator.evaluate(kind)
                truth.append(by_hand(learner, images, 3))
    return evaluator, truth


def every_second(step: int, last: bool) -> str | None:
    return "both" if last else "anytime" if step % 2 == 0 else None


@pytest.mark.parametrize("norm_layers", [True, False])  # without them IBN is BN, at each point
def test_a_whole_run(
    norm_layers: bool, images: Dataset, make_learner: Make, make_net: Any, make_batches: Any
) -> None:
    learner = make_learner("er-dual-cba", make_net(norm=norm_layers), lr=0.1)
    evaluator, truth = run(learner, images, make_batches, every_second)
    result = evaluator.result()
    assert result["anytime"]["step"] == [2, 4, 6, 8, 10, 12]
    assert result["anytime"]["task"] == [0, 0, 1, 1, 2, 2]
    assert result["task_ends"] == [4, 8, 12]
    for norm in STATISTICS:
        rows = [t[norm] for t in truth]
        matrix = [rows[2], rows[4], rows[6]]
        assert np.allclose(result["accuracy_matrix"][norm], matrix)
        curve = [row[: k + 1] for row, k in zip(rows[1:], [0, 0, 1, 1, 2, 2], strict=True)]
        for got, want in zip(result["anytime"][norm], curve, strict=True):
            assert got == pytest.approx(want)
        scores = result["scores"][norm]
        assert scores["acc"] == pytest.approx(np.mean(matrix[2]))
        assert scores["acc_auc"] == pytest.approx(np.mean([np.mean(c) for c in curve]))
        assert scores["acc_auc_last"] == pytest.approx(np.mean([np.mean(c) for c in curve[4:]]))
        forgot = [max(matrix[0][0], matrix[1][0], matrix[2][0]) - matrix[2][0],
                  max(matrix[1][1], matrix[2][1]) - matrix[2][1]]  # fmt: skip
        assert scores["fm"] == pytest.approx(np.mean(forgot))
        gain = [matrix[0][1] - rows[0][1], matrix[1][2] - rows[0][2]]
        assert scores["fwt"] == pytest.approx(np.mean(gain))


def test_the_lowest_recall_of_the_newest_task(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    unequal = 0
    for seed in range(4):
        learner = make_learner("er", lr=0.15, seed=seed)
        evaluator, _ = run(learner, images, make_batches, every_second)
        scores = evaluator.result()["scores"]
        for norm in STATISTICS:
            learner._statistics = norm
            right = learner.predict(images.test_x) == images.test_y
            recalls = [100 * float(right[images.test_y == c].float().mean()) for c in (4, 5)]
            assert scores[norm]["newest_recall"] == pytest.approx(min(recalls))
            assert scores[norm]["newest_last"] == pytest.approx(sum(recalls) / 2)
            unequal += recalls[0] != recalls[1]
    assert unequal  # else the lowest one would be that of any class


def test_balanced_accuracy_is_the_mean_recall(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    """On test tasks of unequal classes, where it is not ACC, and with a class in two tasks."""
    learner = teach(make_learner("er", lr=0.1), tasks=3, steps=8)
    first, second, third = disjoint(images, 3)
    rare = first.test[images.test_y[first.test].numpy() == 0][:1]
    common = first.test[images.test_y[first.test].numpy() == 1]
    parts = [np.concatenate([rare, common[:2]]), second.test, third.test, common[2:]]
    tasks = [replace(first, test=rows) for rows in parts]
    evaluator = Evaluator(learner, images, tasks, batch_size=7)
    for kind in ("start", *["end"] * 4):
        evaluator.evaluate(kind)
    scores = evaluator.result()["scores"]
    rows = np.concatenate(parts)
    for norm in STATISTICS:
        learner._statistics = norm
        right = (learner.predict(images.test_x) == images.test_y).numpy()[rows]
        y = images.test_y.numpy()[rows]
        want = 100 * np.mean([right[y == c].mean() for c in np.unique(y)])
        assert scores[norm]["balanced_acc"] == pytest.approx(want)
    assert scores["bn"]["balanced_acc"] != pytest.approx(scores["bn"]["acc"])


def test_on_balanced_tests_of_equal_tasks_it_is_acc(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    evaluator, _ = run(make_learner(lr=0.1), images, make_batches, every_second)
    for scores in evaluator.result()["scores"].values():
        assert scores["balanced_acc"] == pytest.approx(scores["acc"])


def test_tasks_that_share_a_class_are_counted_apart(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner("er", lr=0.1), tasks=3, steps=8)
    first, *others = disjoint(images, 3)
    half = [replace(first, test=first.test[k::2]) for k in (0, 1)]
    evaluator = Evaluator(learner, images, [half[0], *others, half[1]], batch_size=7)
    evaluator.evaluate("end")
    right = (learner.predict(images.test_x) == images.test_y).numpy()
    want = [100 * right[t.test].mean() for t in (half[0], *others, half[1])]
    assert evaluator._table(learner._statistics)[0].tolist() == pytest.approx(want)


def test_task_ends_only(images: Dataset, make_learner: Make, make_batches: Any) -> None:
    evaluator, _ = run(
        make_learner(), images, make_batches, lambda s, last: "end" if last else None
    )
    result = evaluator.result()
    assert result["anytime"] == {"step": [], "task": [], "bn": [], "ibn": []}
    assert result["scores"]["bn"]["acc_auc"] is None
    assert result["scores"]["bn"]["acc"] is not None


def test_an_anytime_point_asks_only_for_the_tasks_so_far(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner("er"), tasks=1)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=5)
    seen: list[int] = []
    learner.network.register_forward_hook(lambda m, a, out: seen.append(len(a[0])))
    with learner.evaluating("bn"):
        evaluator._correct(1)
    assert sum(seen) == 10
    evaluator.evaluate("anytime")
    assert evaluator.accuracy() == pytest.approx(by_hand(learner, images, 3)["bn"][0])


def test_the_accuracy_at_a_point_is_under_the_norm_that_is_scored_there(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner(lr=0.1))
    one, other = (
        Evaluator(learner, images, disjoint(images, 3), anytime=("ibn",)) for _ in range(2)
    )
    one.evaluate("anytime")
    other.load_state_dict(one.state_dict())
    want = np.mean(by_hand(learner, images, 3)["ibn"][:2])
    for evaluator in (one, other):
        assert evaluator.accuracy("bn") == evaluator.accuracy("ibn") == pytest.approx(want)


def test_before_anything_is_learnt(images: Dataset, make_learner: Make) -> None:
    learner = make_learner()
    evaluator = Evaluator(learner, images, disjoint(images, 3))
    evaluator.evaluate("start")
    assert evaluator.accuracy() == pytest.approx(by_hand(learner, images, 3)["bn"][0])
    assert torch.equal(evaluator.counts["bn"][0], evaluator.counts["ibn"][0])


def test_two_evaluators_do_not_mix(images: Dataset, make_learner: Make, teach: Teach) -> None:
    learner = teach(make_learner())
    one = Evaluator(learner, images, disjoint(images, 3))
    two = Evaluator(learner, images, disjoint(images, 2))
    for _ in range(2):
        one.evaluate("end")
        two.evaluate("end")
    assert one._table("bn")[1].tolist() == pytest.approx(by_hand(learner, images, 3)["bn"])
    assert two._table("ibn")[1].tolist() == pytest.approx(by_hand(learner, images, 2)["ibn"])


def test_where_all_normalisation_is_frozen_ibn_is_bn(
    images: Dataset,
    make_learner: Make,
    make_net: Any,
    teach: Teach,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = make_net()
    for layer in batch_norms(network):
        layer.eval()
    learner = teach(make_learner("er", network))
    evaluator = Evaluator(learner, images, disjoint(images, 3))
    asked: list[str] = []
    evaluating = learner.evaluating
    monkeypatch.setattr(learner, "evaluating", lambda n: (asked.append(n), evaluating(n))[1])
    evaluator.evaluate("end")
    assert asked == ["bn"]
    assert torch.equal(evaluator.counts["bn"][0], evaluator.counts["ibn"][0])


def test_evaluators_never_share_a_graph() -> None:
    from dualcba import load_dataset
    from dualcba.experiments import Hardware, Run, Spec

    spec = Spec(method="er", eval_every=0)
    run = Run(spec, load_dataset("digits"), Hardware(device="cpu"))
    keys = set()
    for _ in range(5):
        evaluator = Evaluator(run.learner, run.data, run.stream)
        keys.add(evaluator._key)
        del evaluator
    assert len(keys) == 5
