"""Prequential accuracy against predictions made by hand before each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dualcba import Dataset
from dualcba.data import disjoint
from dualcba.evaluation.prequential import Prequential
from dualcba.experiments import Hardware, Run, Spec
from dualcba.prediction.memory_pass import MemoryPass

CPU = Hardware(device="cpu")


def spec(**options: Any) -> Spec:
    """Three tasks of two classes, six steps each."""
    small = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8, "buffer": 20}
    given = {"eval_every": 1, "method": "er", "record": ["prequential"], "lr": 0.1}
    return Spec(**small | given | options)


def by_hand(run: Run, statistics: str) -> list[list[bool]]:
    """Finish the run; whether `predict` was right on each new sample, per step."""
    right: list[list[bool]] = []
    recorder = run.recorders["prequential"]
    before_step, shown = recorder.before_step, run._visible_labels()
    rows = [row for passes in run.schedule for one in passes for row in one.rows]

    def predict_first(x: torch.Tensor, y: torch.Tensor) -> None:
        before_step(x, y)
        run.learner._statistics = statistics
        y = shown[rows[len(right)]]
        right.append((run.learner.predict(x) == y)[y >= 0].tolist())

    recorder.before_step = predict_first  # type: ignore[method-assign]
    list(run.steps())
    return right


def percent(steps: list[list[bool]]) -> float:
    return 100 * sum(map(sum, steps)) / sum(map(len, steps))


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("method", ["er", "derpp-dual-cba"])
def test_it_is_what_predict_answers_before_each_step(
    statistics: str, method: str, images: Dataset
) -> None:
    run = Run(spec(method=method), images, CPU)
    right = by_hand(run, statistics)
    result = run.result()
    found = result["recordings"]["prequential"][statistics]
    assert found["accuracy"] == pytest.approx(percent(right))
    tasks = [percent(right[6 * t : 6 * t + 6]) for t in range(3)]
    assert found["tasks"] == pytest.approx(tasks)
    assert 0 < found["accuracy"] < 100
    assert result["scores"][statistics]["prequential"] == found["accuracy"]


def test_only_the_first_pass_counts(images: Dataset) -> None:
    run = Run(spec(epochs=2), images, CPU)
    right = by_hand(run, "bn")
    first = [step for t in range(3) for step in right[12 * t : 12 * t + 6]]
    assert run.result()["scores"]["bn"]["prequential"] == pytest.approx(percent(first))
    assert percent(first) != percent(right)


def test_samples_without_a_label_do_not_count(images: Dataset) -> None:
    run = Run(spec(setting="semi-0.5"), images, CPU)
    right = by_hand(run, "bn")
    assert 0 < sum(map(len, right)) < 18 * 8
    assert run.result()["scores"]["bn"]["prequential"] == pytest.approx(percent(right))


@pytest.mark.parametrize(
    "options",
    [
        {"setting": "semi-0.3", "labelled_batches": "cycled"},
        {"setting": "semi-0.3", "labelled_batches": "cycled", "unlabelled_samples": "all"},
        {"method": "icarl", "method_options": {"merge": True}, "buffer": 30},
    ],
)
@pytest.mark.parametrize("real_time", [False, True])
def test_samples_that_come_round_again_do_not_count(
    options: dict[str, Any], real_time: bool, images: Dataset
) -> None:
    if real_time and "method" in options:
        pytest.skip("it reads a task again")
    in_time = {"real_time": True, "relative_cost": 1} if real_time else {}
    run = Run(spec(**options, **in_time), images, CPU)
    rows = [row for passes in run.schedule for one in passes for row in one.rows]
    known: set[int] = set()
    right: list[list[bool]] = []
    every: list[int] = []
    recorder = run.recorders["prequential"]
    before_step = recorder.before_step

    def predict_first(x: torch.Tensor, y: torch.Tensor) -> None:
        before_step(x, y)
        answers = run.learner.predict(x)
        now, shown = [], run._visible_labels()
        for k, answer in zip(rows[len(right)].tolist(), answers.tolist(), strict=True):
            if k < len(images.train_y) and k not in known and shown[k] >= 0:
                now.append(answer == int(images.train_y[k]))
            known.add(k)
        right.append(now)
        every.append(len(answers))

    recorder.before_step = predict_first  # type: ignore[method-assign]
    list(run.steps())
    assert 0 < sum(map(len, right)) < sum(every)
    assert run.result()["scores"]["bn"]["prequential"] == pytest.approx(percent(right))


@pytest.mark.parametrize(("anytime", "found"), [("bn", ["bn"]), ("ibn", ["ibn"])])
def test_it_is_measured_under_the_statistics_of_anytime(
    anytime: str, found: list[str], images: Dataset
) -> None:
    run = Run(spec(anytime=anytime), images, CPU)
    list(run.steps())
    result = run.result()
    assert list(result["recordings"]["prequential"]) == found
    assert [s for s, scores in result["scores"].items() if "prequential" in scores] == found


@pytest.mark.parametrize(
    ("every", "size", "steps"),
    [(4, 8, [1, 4, 8, 16]), (0, 8, [1, 5, 10, 15]), (40, 1, [2, 40])],
)
def test_ibn_is_estimated_every_few_steps(
    every: int, size: int, steps: list[int], images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in between the network predicts under the last estimate, with its newest weights."""
    at: list[int] = []
    estimates: dict[int, list[torch.Tensor]] = {}
    over_all = MemoryPass._over_all

    def noticed(self: MemoryPass, *args: Any, **more: Any) -> None:
        at.append(run.learner.step)
        over_all(self, *args, **more)
        estimates[run.learner.step] = [t.clone() for t in running]

    monkeypatch.setattr(MemoryPass, "_over_all", noticed)
    tasks: Any = 3 if size > 1 else [[0, 1]]
    run = Run(spec(eval_every=every, batch_size=size, tasks=tasks), images, CPU)
    layers = run.learner.parts.forward_pass.trained_norm_layers
    running = [t for layer in layers for t in (layer.running_mean, layer.running_var)]
    network, recorder = run.learner.network.module, run.recorders["prequential"]
    right: list[list[bool]] = []
    kept: list[torch.Tensor] = []  # the last estimate of the recorder
    before_step = recorder.before_step

    @torch.no_grad()
    def predict_first(x: torch.Tensor, y: torch.Tensor) -> None:
        live, step = [t.clone() for t in running], run.learner.step
        with torch.enable_grad():
            before_step(x, y)
        assert all(map(torch.equal, live, running))
        if step == steps[0] or (step > steps[0] and step % (every or 5) == 0):
            kept[:] = estimates[step]
        for t, value in zip(running, kept or live, strict=True):
            t.copy_(value)
        right.append((network.eval()(images.transform()(x)).argmax(1) == y).tolist())
        network.train()
        for t, value in zip(running, live, strict=True):
            t.copy_(value)

    recorder.before_step = predict_first  # type: ignore[method-assign]
    list(run.steps())
    task = 48 // size  # without task ends, where it is estimated anyway
    assert [step for step in at if step % task] == steps  # any-time evaluation shares an estimate
    assert run.result()["scores"]["ibn"]["prequential"] == pytest.approx(percent(right))


def test_without_normalisation_layers_ibn_is_bn(
    images: Dataset, make_learner: Any, make_net: Any, make_batches: Any
) -> None:
    learner = make_learner("er", make_net(norm=False))
    stream = disjoint(images, 3)
    recorder = Prequential(learner, images, stream, [5, 5, 5])
    for task, batches in zip(stream, make_batches(3, steps=5), strict=True):
        learner.new_task(task.classes)
        for x, y in batches:
            recorder.before_step(x, y)
            learner.observe(x, y)
    assert recorder.statistics == ("bn",)  # measured once
    found = recorder.result()
    assert found["bn"] == found["ibn"]
    assert recorder.scores() == {s: {"prequential": found["bn"]["accuracy"]} for s in found}
