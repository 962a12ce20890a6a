"""Recorders against counting by hand, and the trace that they do not leave."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import Dataset
from dualcba.evaluation import RECORDERS, recorders
from dualcba.experiments import Hardware, Run, Spec

CPU = Hardware(device="cpu")


def spec(**options: Any) -> Spec:
    """Three tasks of two classes, six steps each."""
    small = {"dataset": "digits", "network": "mlp", "tasks": 3, "batch_size": 8, "buffer": 20}
    return Spec(**small | {"eval_every": 0, "method": "er-dual-cba"} | options)


def finish(spec: Spec, data: Dataset, each: Callable[[Run], None] | None = None) -> Run:
    run = Run(spec, data, CPU)
    for _ in run.steps():
        if each is not None:
            each(run)
    return run


# ---------------------------------------------------------------- predictions


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "icarl"])
@pytest.mark.parametrize("batch", [7, 500])
def test_predictions_are_what_predict_answers(
    method: str, batch: int, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "BATCH", batch)
    run = finish(spec(method=method, record=["predictions"]), images)
    got = run.result()["recordings"]["predictions"]
    for norm in ("bn", "ibn"):
        run.learner._statistics = norm
        want = np.zeros((6, 6), int)
        answers = run.learner.predict(images.test_x)
        np.add.at(want, (images.test_y.numpy(), answers.numpy()), 1)
        assert got[norm] == want.tolist()
        assert np.sum(got[norm], 1).tolist() == [5] * 6


def test_predictions_agree_with_the_scores(images: Dataset) -> None:
    result = finish(spec(record=["predictions"]), images).result()
    for norm in ("bn", "ibn"):
        right = np.diag(result["recordings"]["predictions"][norm])
        assert 100 * right.sum() / 30 == pytest.approx(result["scores"][norm]["acc"])


# ---------------------------------------------------------------- transitions


def posteriors(images: Dataset, **options: Any) -> list[torch.Tensor]:
    """The mean posterior of each true class, (6, 6), as the network was at each step."""
    seen: list[torch.Tensor] = []

    def look(run: Run) -> None:
        network = copy.deepcopy(run.learner.network.module).eval()
        with torch.no_grad():
            p = network(images.transform()(images.test_x)).softmax(1)
        seen.append(torch.stack([p[images.test_y == c].mean(0) for c in range(6)]))

    run = Run(spec(**options), images, CPU)
    look(run)
    for _ in run.steps():
        look(run)
    return seen


@pytest.mark.parametrize("method", ["er", "er-dual-cba"])
def test_transitions_are_what_the_network_said_at_each_step(method: str, images: Dataset) -> None:
    seen = posteriors(images, method=method)
    run = finish(spec(method=method, record=["transitions"]), images)
    got = run.result()["recordings"]["transitions"]
    assert [entry["task"] for entry in got] == [2, 3]
    for t, entry in zip((1, 2), got, strict=True):
        assert entry["step"] == [-5, -1, 0, 1, 2, 3, 4, 5]
        old, new = slice(0, 2 * t), slice(2 * t, 2 * t + 2)
        at = torch.stack([seen[6 * t + s] for s in entry["step"]])  # (steps, true, predicted)
        for who, rows in (("old", old), ("new", new)):  # classes have equally many test samples
            for side, classes in (("p_old", old), ("p_new", new)):
                want = at[:, rows, classes].sum(2).mean(1)
                assert entry[who][side] == pytest.approx(want.tolist(), abs=1e-6)
        one = entry["classes"]
        assert (one["class"], one["steps"]) == (2 * t - 2, [0, 5])
        assert one["before"] == pytest.approx(seen[6 * t][2 * t - 2].tolist(), abs=1e-6)
        assert one["after"] == pytest.approx(seen[6 * t + 5][2 * t - 2].tolist(), abs=1e-6)


def test_few_samples_are_drawn_by_the_seed(
    images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "MOST", 4)
    rows = []
    for seed in (0, 0, 1):
        run = Run(spec(seed=seed, record=["transitions"]), images, CPU)
        boundary = run.recorders["transitions"].boundaries[1]  # type: ignore[attr-defined]
        rows.append([part.tolist() for part in boundary.groups])
        old, new, one = (images.test_y[part] for part in boundary.groups)
        assert (len(old), len(new), len(one)) == (4, 4, 4)
        assert max(old) < 4
        assert min(new) >= 4
        assert set(one.tolist()) == {2}
    assert rows[0] == rows[1] != rows[2]


def test_the_class_is_the_middle_one_of_the_task_before(images: Dataset) -> None:
    """As the paper's 85th, index 84, is the fifth of the ten classes of the ninth task."""
    run = Run(spec(tasks=[[3, 1, 5], [0, 2], [4]], record=["transitions"]), images, CPU)
    boundaries = run.recorders["transitions"].boundaries  # type: ignore[attr-defined]
    assert [boundary.one for boundary in boundaries] == [1, 0]


@pytest.mark.parametrize("tasks", [1, [[0, 1, 2], [5]], [1, 1, 1, 1, 1, 1]])
def test_tasks_of_any_number_and_length(tasks: Any, images: Dataset) -> None:
    """Some have three steps, less than the distance to the first look before a boundary."""
    run = finish(spec(tasks=tasks, record=["transitions"]), images)
    got = run.result()["recordings"]["transitions"]
    assert len(got) == len(run.stream) - 1
    for entry in got:
        assert 0 in entry["step"]
        assert len(entry["step"]) == len(entry["old"]["p_new"])
        assert entry["step"] == sorted(entry["step"])
        assert not run.recorders["transitions"].boundaries[0].x  # type: ignore[attr-defined]


def test_a_boundary_is_measured_from_the_first_step_before_it_to_the_last_one_after(
    images: Dataset,
) -> None:
    """Three tasks of five steps: from five steps before the steps 5 and 10 to four after."""
    run = Run(spec(batch_size=9, record=["transitions"]), images, CPU)
    assert run.total == 15
    due = run.recorders["transitions"].due  # type: ignore[attr-defined]
    assert sorted(due) == [0, *range(4, 15)]


def test_shortly_after_a_boundary_is_the_fifth_step(images: Dataset) -> None:
    entries = finish(spec(batch_size=4, record=["transitions"]), images).result()["recordings"]
    assert [one["classes"]["steps"] for one in entries["transitions"]] == [[0, 5], [0, 5]]


# ---------------------------------------------------------------- no trace

VARIANTS: dict[str, dict[str, Any]] = {
    **{m: {"method": m} for m in ("er", "er-cba", "derpp-dual-cba", "clser-cba", "rar-dual-cba")},
    **{m: {"method": m} for m in ("icarl", "lucir", "bic", "er-ace", "ss-il")},
    "probability": {"space": "probability"},
    "adab2n": {"norm": "adab2n"},
    "concat": {"forward": "concat"},
    "lone samples": {"batch_size": 1, "buffer": 1, "epochs": 1},
    "semi": {"setting": "semi-0.2", "method": "derpp-dual-cba"},
    "semi, cycled": {"setting": "semi-0.2", "labelled_batches": "cycled"},
    "blurry": {"setting": "blurry-10"},
    "offline": {"setting": "offline"},
    "inferred": {"boundaries": "inferred"},
    "seen only": {"seen_only": True},
}


@pytest.mark.no_cover  # the lines are those of the tests above
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_recorded_run_is_the_same_run(
    options: dict[str, Any], images: Dataset, differ: Any
) -> None:
    """Scores and state, bit for bit; and torch's own generator is not touched."""
    options = {"epochs": 1 if options.get("method") in ("icarl", "bic") else 2} | options
    plain = finish(spec(**options), images)
    recorded = Run(spec(**options, record=list(RECORDERS)), images, CPU)
    before = torch.get_rng_state()
    list(recorded.steps())
    want, got = plain.result(), recorded.result()
    assert torch.equal(before, torch.get_rng_state())
    assert differ(plain.learner.state_dict(), recorded.learner.state_dict()) == []
    for statistics, scores in got["scores"].items():
        usual = want["scores"][statistics]
        assert {name: scores[name] for name in usual} == usual
        assert scores.keys() - usual == {
            "prequential",
            "task_aware_acc",
            "ncm_acc",
            "nn_acc",
            "lda_acc",
            "random_acc",
        }
        accuracy = got["recordings"]["prequential"][statistics]["accuracy"]
        assert scores["prequential"] == accuracy
    for part in ("accuracy_matrix", "anytime"):
        assert got[part] == want[part]
    assert "recordings" not in want
    assert set(got["recordings"]) == set(RECORDERS)
    assert got["recordings"]["alignment"]["step"]
    json.dumps(got, allow_nan=False)


def test_a_recorded_run_leaves_gradients_and_modes_alone(images: Dataset) -> None:
    states = []
    for record in ([], list(RECORDERS)):
        learner = finish(spec(record=record), images).learner
        grads = [p.grad.clone() for p in learner.network.parameters() if p.grad is not None]
        states.append((grads, [m.training for m in learner.network.modules()]))
        assert all(layer.track_running_stats for layer in learner.parts.forward_pass.norm_layers)
    assert states[0][1] == states[1][1]
    assert all(torch.equal(a, b) for a, b in zip(states[0][0], states[1][0], strict=True))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("record", [*RECORDERS, ",".join(RECORDERS)])
@pytest.mark.parametrize("method", ["er-dual-cba", "derpp-cba", "clser-dual-cba"])
def test_a_recorded_run_is_the_same_run_on_a_gpu(
    method: str, record: str, images: Dataset, differ: Any
) -> None:
    """Captured, with the recorders' eager work between the graphs."""
    states = []
    for recorded in ("", "", record):
        names = [name for name in recorded.split(",") if name]
        given = spec(method=method, network="resnet18-slim", epochs=2, record=names)
        run = Run(given, images, Hardware(device="cuda"))
        list(run.steps())
        json.dumps(run.result(), allow_nan=False)
        states.append(run.learner.state_dict())
    assert differ(*states[:2]) == [], "two runs without recorders differ: this is no trace"
    assert differ(*states[1:]) == []
