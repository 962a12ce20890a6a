"""A monitor: its numbers are right, the learner does not notice it, and what it survives."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from dualcba import Learner
from dualcba.estimator import DualCBAClassifier
from dualcba.memory import Balanced
from dualcba.methods.er import ER
from dualcba.monitoring import Monitor, read_watch
from dualcba.nets import MLP

Make = Callable[..., Learner]


def learn(learner: Learner, make_batches: Any, tasks: int = 3, after: Any = None) -> None:
    for k, part in enumerate(make_batches(3)[:tasks]):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in part:
            learner.observe(x, y)
            if after is not None:
                after(x, y)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser-dual-cba", "icarl"])
def test_the_learner_does_not_notice_it(
    method: str, on_device: bool, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    plain, watched = make_learner(method), make_learner(method)
    if on_device:  # as on a GPU
        for learner in (plain, watched):
            learner.parts.training_step.stay_on_device()
    monitor = Monitor(watched, window=20)
    learn(plain, make_batches)
    learn(watched, make_batches, after=lambda *_: monitor.numbers())
    assert differ(plain.state_dict(), watched.state_dict()) == []


def test_the_window_holds_predictions_of_batches_before_they_are_learnt(
    make_learner: Make, make_batches: Any
) -> None:
    watched, asked = make_learner(), make_learner()
    monitor, labels, answers = Monitor(watched, window=30), [], []
    for k, part in enumerate(make_batches(3)):
        for learner in (watched, asked):
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in part:
            with asked.evaluating(asked.statistics):
                answers += asked.scores(x).argmax(1).tolist()
            labels += y.tolist()
            for learner in (watched, asked):
                learner.observe(x, y)
    found = monitor.numbers()
    right = np.array(labels) == np.array(answers)
    assert found["samples"] == len(right) == 120
    assert found["accuracy"] == pytest.approx(100 * right.mean())
    assert found["window"]["accuracy"] == pytest.approx(100 * right[-30:].mean())
    assert found["window"]["samples"] == sum(n for *_, n in found["confusion"]) == 30
    for one in found["classes"]:
        mine = np.array(labels[-30:]) == one["class"]
        assert one["samples"] == mine.sum()
        assert one["side"] == ("new" if one["class"] >= 4 else "old")
        share = 100 * np.mean(np.array(answers[-30:]) == one["class"])
        assert one["answers"] == pytest.approx(share)
        if mine.any():
            assert one["accuracy"] == pytest.approx(100 * right[-30:][mine].mean())
        assert one["memory"] == watched.memory.y[:20].tolist().count(one["class"])
    loss = watched.parts.loss_monitor.values[: watched.step]
    assert found["loss"]["last"] == pytest.approx(float(loss[-1]))
    assert found["loss"]["mean"] == pytest.approx(float(loss.mean()))
    assert json.loads(json.dumps(found))["step"] == watched.step


class BalancedER(ER):
    def make_memory(self, size: int, shape: Any, dtype: Any, C: int) -> Balanced:
        return Balanced(size, shape, dtype)


@pytest.mark.parametrize("method", ["er", BalancedER])
def test_ages_are_those_of_the_samples(method: Any, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner(method if isinstance(method, str) else method())
    monitor = Monitor(learner)
    stored: dict[bytes, int] = {}
    learn(
        learner, make_batches,
        after=lambda x, _: stored.update({row.numpy().tobytes(): learner.step - 1 for row in x}),
    )  # fmt: skip
    born = monitor._births[0][: learner.memory.filled].tolist()
    # a sample may have arrived twice: the last time at the latest
    for row, step in zip(learner.memory.x[: learner.memory.filled], born, strict=True):
        assert 0 <= step <= stored[row.numpy().tobytes()]
    age = monitor.numbers()["memory"]["age"]
    assert age["known"] == 20
    assert age["mean"] == pytest.approx(learner.step - np.mean(born))
    assert age["max"] == learner.step - min(born)
    assert sum(age["histogram"]) == 20


def test_the_correction_is_that_of_the_adaptor(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba")
    monitor = Monitor(learner)
    assert monitor.numbers()["correction"] is None  # the memory is empty
    learn(learner, make_batches, tasks=2)
    with learner.evaluating(learner.statistics):
        x = learner.parts.context.transform(learner.memory.x[:20])
        r = learner.adaptor(learner.network(x)[0])  # type: ignore[misc]
    found = monitor.numbers()["correction"]
    assert found["old"] == pytest.approx(float(r[:, :2].mean()), abs=1e-6)
    assert found["new"] == pytest.approx(float(r[:, 2:4].mean()), abs=1e-6)
    assert Monitor(make_learner("er")).numbers()["correction"] is None


def test_it_goes_on_when_classes_arrive() -> None:
    torch.manual_seed(0)
    learner = Learner(
        MLP((4,), 2, width=8), (4,), dtype=torch.float32, buffer=12, batch_size=4,
        boundaries="inferred", width=8, device="cpu",
    )  # fmt: skip
    monitor = Monitor(learner, window=50)
    empty = monitor.numbers()
    assert (empty["accuracy"], empty["classes"], empty["loss"]["last"]) == (None, [], None)
    for names in (["a", "b"], ["c", "d"], [("e", 1), 7]):
        for _ in range(6):
            learner.observe(torch.eye(4).repeat(1, 1), [*names, *names])
    found = monitor.numbers()
    assert learner.network.num_classes == 8
    assert [one["class"] for one in found["classes"]] == ["a", "b", "c", "d", "('e', 1)", 7]
    assert found["samples"] == 72
    assert found["memory"]["age"]["known"] == 12


def test_a_failed_step_does_not_count(
    make_learner: Make, make_batches: Any, monkeypatch: Any
) -> None:
    learner = make_learner("er")
    monitor = Monitor(learner)
    learn(learner, make_batches, tasks=1)
    before, (x, y) = monitor.numbers(), make_batches(3)[0][0]

    def fail(*_: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(learner.parts.method, "loss", fail)
        with pytest.raises(MemoryError):
            learner.observe(x, y)
    assert monitor.numbers() == before
    learner.observe(x, y)
    assert monitor.numbers()["samples"] == before["samples"] + len(x)


def test_another_state_begins_anew(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er")
    monitor = Monitor(learner)
    learn(learner, make_batches, tasks=1)
    state = learner.state_dict()
    learn_more = make_batches(3)[0]
    learner.observe(*learn_more[0])
    learner.load_state_dict(state)
    learner.observe(*learn_more[0])
    found = monitor.numbers()
    assert found["samples"] == len(learn_more[0][0])
    assert 0 < found["memory"]["age"]["known"] < 20  # the others were stored before


def test_every_and_later_epochs(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er")
    monitor = Monitor(learner, every=2)
    learner.new_task([0, 1])
    for k, (x, y) in enumerate(make_batches(3)[0][:4]):
        learner.observe(x, y, again=k == 2)
    assert monitor.numbers()["samples"] == 8  # the first batch: the third one came again


def test_a_monitor_that_nobody_keeps_is_gone(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er")
    monitor = Monitor(learner)
    first, second = make_batches(3)[0][:2]
    learner.new_task([0, 1])
    learner.observe(*first)
    del monitor
    gc.collect()
    assert learner._listener() is None
    learner.observe(*second)
    monitor = Monitor(learner)
    monitor.close()
    assert learner._listener() is None
    assert learner.memory.births is None


def test_a_copy_of_the_learner_is_not_watched(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er")
    monitor = Monitor(learner)
    learn(learner, make_batches, tasks=1)
    before = monitor.numbers()
    other = copy.deepcopy(learner)
    other.observe(*make_batches(3)[0][0])
    assert other._listener() is None
    assert monitor.numbers() == before
    learner.observe(*make_batches(3)[0][0])
    assert monitor.numbers()["samples"] == before["samples"] + 8


def test_the_file_and_the_panel(make_learner: Make, make_batches: Any, tmp_path: Path) -> None:
    learner, path = make_learner("er-dual-cba"), tmp_path / "sub" / "watch.json"
    about = {"title": "mine", "total": 15}
    monitor = Monitor(learner, path=path, seconds=0.0, about=about, names=list("uvwxyz"))
    learn(learner, make_batches, after=lambda *_: read_watch(path))
    assert read_watch(path)["status"] == "running"
    monitor.close()
    content = read_watch(path)
    assert (content["status"], content["step"], content["title"]) == ("complete", 15, "mine")
    assert [p.name for p in path.parent.iterdir()] == ["watch.json"]
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(monitor.panel())
    text = console.export_text()
    lines = text.splitlines()
    assert "mine" in lines[0]
    assert {len(line) for line in lines} == {80}
    assert ", at most 15" in text
    assert any(line.split()[1:3] == ["z", "new"] for line in lines)
    assert "…" not in text


def test_a_folder_that_cannot_be_written_is_a_warning(
    make_learner: Make, make_batches: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    learner = make_learner("er")
    monitor = Monitor(learner, path=tmp_path / "file" / "watch.json", seconds=0.0)
    with pytest.warns(UserWarning, match="cannot be written"):
        learn(learner, make_batches, tasks=1)
    assert monitor.numbers()["step"] == 5


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 1, "status": 3}', '{"schema": 2}'])
def test_damaged_files_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "watch.json").write_text(content)
    with pytest.raises(ValueError, match=r"watch\.json cannot be read"):
        read_watch(tmp_path / "watch.json")


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_captured_steps_are_watched(make_learner: Make, make_batches: Any, differ: Any) -> None:
    options = {"device": "cuda", "engine": "captured", "precision": "fp32"}
    plain, watched = make_learner(**options), make_learner(**options)
    learn(plain, make_batches, tasks=1)
    learn(watched, make_batches, tasks=1)
    monitor = Monitor(watched)  # in the middle: what was captured is captured again
    for learner in (plain, watched):
        for k, part in enumerate(make_batches(3)[1:], 1):
            learner.new_task([2 * k, 2 * k + 1])
            for x, y in part:
                learner.observe(x, y)
    assert differ(plain.state_dict(), watched.state_dict()) == []
    found = monitor.numbers()
    assert found["samples"] == 80
    assert 0 < found["memory"]["age"]["known"] < 20


@pytest.mark.parametrize("about", [{"started": object()}, {"x": float("nan")}, [1], "text"])
def test_what_json_cannot_hold_is_refused_before_any_step(make_learner: Make, about: Any) -> None:
    with pytest.raises(ValueError, match=r"about is .*, expected a dict of JSON values"):
        Monitor(make_learner(), about=about)


def test_something_else_than_a_learner_is_refused() -> None:
    message = "learner is 'DualCBAClassifier', expected a Learner: `learner_` of a fitted"
    with pytest.raises(ValueError, match=message):
        Monitor(DualCBAClassifier())  # type: ignore[arg-type]


def test_a_file_that_cannot_hold_a_label_is_a_warning(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    learner = Learner(net, (4,), dtype=torch.float32, boundaries="inferred", buffer=10)
    monitor = Monitor(learner, path=tmp_path / "watch.json", seconds=0.0)
    with pytest.warns(UserWarning, match="cannot be written"):
        learner.observe(torch.eye(4), [float("inf"), 0.0, 0.0, 1.0])
    assert learner.step == 1
    monitor.close()
    assert learner.memory.births is None
