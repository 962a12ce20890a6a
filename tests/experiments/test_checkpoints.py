"""Checkpoints inside a run: a run that goes on from one equals the undisturbed run, bit for bit."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dualcba
from dualcba import Dataset
from dualcba.checkpoint import read_state_file, write_state_file
from dualcba.evaluation import RECORDERS
from dualcba.experiments import Hardware, Run, Spec
from dualcba.experiments import checkpoints as module
from dualcba.experiments.checkpoints import (
    Keeper,
    checkpoint_paths,
    remove_checkpoints,
    resumed,
    to_host,
)
from dualcba.experiments.pool import RunUpdate, run_specs
from dualcba.experiments.run_state import load_run_state, read_run_state, run_state
from dualcba.methods import method_names
from dualcba.options.values import Interval

CPU = Hardware(device="cpu")
EACH = Interval(steps=1)
Check = Callable[..., None]


def spec(method: str = "er-dual-cba", **given: Any) -> Spec:
    fields: dict[str, Any] = {"tasks": 3, "batch_size": 12, "buffer": 20, "network": "mlp"}
    return Spec(method=method, **fields | {"eval_every": 3} | given)


def outcome(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the steps that are left; return the result without times, and the last state."""
    for _ in run.steps():
        pass
    result = run.result()
    return {k: v for k, v in result.items() if k != "seconds"}, run.learner.state_dict()


@pytest.fixture
def check(differ: Any, tmp_path: Path) -> Callable[..., None]:
    """Write checkpoints after so many batches; the runs that load them must end alike."""

    def resume(wanted: Spec, data: Dataset, *where: int) -> None:
        whole = Run(wanted, data, CPU)
        for _ in whole.steps():
            if whole.taken in where:
                write_state_file(tmp_path / str(whole.taken), run_state(whole))
        result, state = outcome(whole)
        for at in where:
            again = Run(wanted, data, CPU)
            state_then = read_run_state(tmp_path / str(at), wanted, again.data.origin)
            load_run_state(again, state_then)
            assert again.taken == at
            after, state_after = outcome(again)
            assert after == result
            assert differ(state_after, state) == []

    return resume


# ---------------------------------------------------------------- every kind of run


@pytest.mark.parametrize(("number", "method"), list(enumerate(method_names())))
def test_every_method_goes_on_alike(
    number: int, method: str, images: Dataset, check: Check
) -> None:
    whole = Run(spec(method), images, CPU).total
    check(spec(method), images, 2 + number * 5 % (whole - 2))


@pytest.mark.parametrize("record", list(RECORDERS))
def test_every_recorder_goes_on_alike(record: str, images: Dataset, check: Check) -> None:
    wanted = spec(record=[record], eval_every=4)
    length = len(Run(wanted, images, CPU).schedule[0][0])
    check(wanted, images, length, 2 * length + 3)


SETTINGS: list[dict[str, Any]] = [
    {"setting": "blurry-10"},
    {"setting": "semi-0.5", "record": ["prequential"]},
    {"setting": "semi-0.5", "labelled_batches": "cycled"},
    {"setting": "offline", "epochs": 3, "record": ["prequential", "transitions"]},
    {"boundaries": "inferred", "record": ["transitions"]},
    {"boundaries": "inferred", "method": "bic"},
    {"method": "lucir", "method_options": {"merge": True}, "epochs": 2},
    {"method": "bic", "method_options": {"merge": True}},
    {"method": "icarl", "method_options": {"merge": True, "negatives": True}},
    {"method": "ss-il-dual-cba", "method_options": {"released": True}, "epochs": 2},
    {"eval_every": 0, "anytime": "ibn", "norm": "cn"},
    {"on_outlier": "clip", "forward": "concat"},
    {"real_time": True, "relative_cost": 2.3, "record": ["prequential"]},
    {"setting": "gaussian+semi-0.5"},
    {"optimizer": "adamw", "memory_batch": 12, "head": "cosine", "readout": "ncm"},
    {"optimizer": "sgd", "momentum": 0.9, "while_empty": "store"},
    {"class_order": "shuffled", "seed": 5, "validation": 0.2, "freeze_after": 2},
    {"network": "resnet18-slim", "eval_every": 0, "batch_size": 24, "tasks": 2},
]


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_every_setting_goes_on_alike(given: dict[str, Any], images: Dataset, check: Check) -> None:
    wanted = spec(**given)
    total = Run(wanted, images, CPU).total
    check(wanted, images, 2 * total // 3)


def test_from_the_ends_of_epochs_tasks_and_the_stream(images: Dataset, check: Check) -> None:
    wanted = spec("derpp-cba", epochs=2, batch_size=24, record=["prequential"], tasks=2)
    total = Run(wanted, images, CPU).total
    assert total == 2 * 2 * 3
    check(wanted, images, 3, 6, 9, total)


RELEASED: list[dict[str, Any]] = [
    {"method": "ss-il", "forward": "concat", "loss_mean": "samples"},
    {"method": "bic", "merge": True},
    {"method": "bic", "merge": True, "negatives": True, "buffer": 2},
    {"method": "lucir", "merge": True, "frozen": True, "drop": 10, "negatives": True},
]


@pytest.mark.parametrize("given", RELEASED, ids=str)
def test_released_methods_from_within_and_between_tasks(
    given: dict[str, Any], images: Dataset, check: Check
) -> None:
    own = {"merge", "negatives", "frozen", "drop"}
    options = {name: value for name, value in given.items() if name in own}
    others = {name: value for name, value in given.items() if name not in own}
    wanted = spec(**others, method_options=options | {"released": True})
    first, second, third = (len(passes[0]) for passes in Run(wanted, images, CPU).schedule)
    check(wanted, images, 1, first, first + 2, first + second, first + second + third)


def test_batches_that_are_left_out_count(images: Dataset, check: Check) -> None:
    """A step that is skipped has no number, but the stream goes on."""
    wild = images.train_x.float()
    wild[::7] = 1e30
    data = replace(images, train_x=wild, test_x=images.test_x.float())
    wanted = spec("er", on_outlier="skip")
    run = Run(wanted, data, CPU)
    list(run.steps())
    assert run.learner.step < run.taken == run.total
    check(wanted, data, run.total // 2)


def test_times_are_added(images: Dataset) -> None:
    run = Run(spec("er"), images, CPU)
    next(run.steps())
    run.seconds = {"train": 100.0, "evaluate": 50.0}
    state = run_state(run)
    again = Run(spec("er"), images, CPU)
    load_run_state(again, state)
    next(again.steps())
    assert 100 < again.seconds["train"] < 110
    assert 50 <= again.seconds["evaluate"] < 60


# ---------------------------------------------------------------- files


def interrupted(wanted: Spec, data: Dataset, out: Path, *where: int) -> None:
    """Run with checkpoints after so many batches, then leave as after a kill."""
    run = Run(wanted, data, CPU)
    keeper = Keeper(run, out / wanted.name, EACH, print)
    for _ in run.steps():
        if run.taken in where:
            keeper.save_now()
        if run.taken == max(where):
            return


def finished(wanted: Spec, data: Dataset, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Run to the end; return the result without times, and the notes."""
    updates = list(run_specs([wanted], lambda _: data, CPU, out, every=0))
    notes = [u.note for u in updates if u.note]
    (result,) = [u.result for u in updates if u.result]
    return {k: v for k, v in result.items() if k != "seconds"}, notes


def test_two_are_kept_and_none_after_the_end(images: Dataset, tmp_path: Path) -> None:
    wanted = spec("er")
    expected, _ = finished(wanted, images, tmp_path / "whole")
    interrupted(wanted, images, tmp_path, 3, 7, 9)
    folder = tmp_path / wanted.name
    first, second = checkpoint_paths(folder)
    assert sorted(folder.iterdir()) == [second, first]
    assert [read_state_file(path)["meta"]["taken"] for path in (first, second)] == [9, 7]
    result, notes = finished(wanted, images, tmp_path)
    assert result == expected
    total = Run(wanted, images, CPU).total
    assert notes == [f"{wanted.name} continues after 9 of {total} batches, from {first.name}"]
    assert {path.name for path in folder.iterdir()} == {"result.json", "curves.parquet"}


def test_no_interval_writes_none(images: Dataset, tmp_path: Path) -> None:
    source = run_specs([spec("er")], lambda _: images, CPU, tmp_path, every=1)
    for update in source:
        if update.step == 9:
            source.close()
    assert list(tmp_path.iterdir()) == []


def test_an_interval_of_time(images: Dataset, tmp_path: Path) -> None:
    run = Run(spec("er"), images, CPU)
    steps, told = run.steps(), list[str]()
    keeper = Keeper(run, tmp_path, Interval(seconds=0.05), told.append)
    next(steps)
    keeper.after_step()
    assert checkpoint_paths(tmp_path) == []
    time.sleep(0.06)
    keeper.after_step()
    keeper.close()
    assert (len(checkpoint_paths(tmp_path)), told) == (1, [])


def test_runs_abreast(images: Dataset, tmp_path: Path) -> None:
    wanted = [replace(spec("er-dual-cba"), seed=seed) for seed in (0, 1, 2)]
    source = run_specs(
        wanted, lambda _: images, CPU, tmp_path, abreast=3, every=1, checkpoints=EACH
    )
    for update in source:
        if update.step == 8:
            source.close()
    for one in wanted:
        assert checkpoint_paths(tmp_path / one.name)
        expected, _ = finished(one, images, tmp_path / "whole")
        assert finished(one, images, tmp_path)[0] == expected


# ---------------------------------------------------------------- damaged files


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def _change(path: Path, **fields: Any) -> None:
    state = read_state_file(path)
    write_state_file(path, {**state, "meta": state["meta"] | fields})


def _another_spec(path: Path) -> None:
    state = read_state_file(path)
    _change(path, spec=state["meta"]["spec"] | {"buffer": 50})


def _another_version(path: Path) -> None:
    _change(path, dualcba="0.0.1")


def _another_schema(path: Path) -> None:
    _change(path, checkpoint=99)


def _other_data(path: Path) -> None:
    _change(path, data=read_state_file(path)["meta"]["data"] | {"digest": "0" * 64})


def _a_state_of_a_learner(path: Path) -> None:
    state = read_state_file(path)
    write_state_file(path, {**state, "meta": state["meta"]["learner"]})


def _no_batches(path: Path) -> None:
    _change(path, taken=10**6)


def _no_points(path: Path) -> None:
    _change(path, parts=read_state_file(path)["meta"]["parts"] | {"evaluator": {"points": [3]}})


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARM: dict[Callable[[Path], None], str] = {
    _truncate: "is damaged, expected a checkpoint of a run that matches its SHA-256",
    _empty: "expected a complete safetensors file",
    _flip: "is damaged, expected a checkpoint of a run that matches its SHA-256",
    _another_spec: "is of another run: buffer is 50, expected 20",
    _another_version: f"another version: dualcba '0.0.1', expected '{dualcba.__version__}'",
    _another_schema: "is of another version: checkpoint 99, expected 1",
    _other_data: "is of other data",
    _a_state_of_a_learner: "is not a checkpoint of a run",
    _no_batches: "taken is 1000000, expected a number of batches up to",
    _no_points: "a point of the state is 3, expected its step, task and kind",
    _a_folder: "is missing, expected a checkpoint of a run",
}


@pytest.fixture(scope="module")
def two(images: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of a run after 7 and 9 batches."""
    out = tmp_path_factory.mktemp("two")
    interrupted(spec("er"), images, out, 7, 9)
    return out


@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize("harm", HARM)
def test_damaged_checkpoints(
    harm: Callable[[Path], None], sound: bool, images: Dataset, two: Path, tmp_path: Path
) -> None:
    """The newest sound one is used and named; without one, a line says that the run starts anew."""
    wanted = spec("er")
    folder = shutil.copytree(two / wanted.name, tmp_path / wanted.name)
    newest, older = checkpoint_paths(folder)
    for path in [newest] if sound else [newest, older]:
        harm(path)
    notes: list[str] = []
    run = resumed(lambda: Run(wanted, images, CPU), folder, notes.append)
    assert run.taken == (7 if sound else 0)
    *left_out, last = notes
    assert len(left_out) == (1 if sound else 2)
    assert all(HARM[harm] in line and "; it is skipped" in line for line in left_out)
    assert all("checkpoint-" in line and "\n" not in line for line in left_out)
    assert last.endswith(f"from {older.name}" if sound else "it starts from the beginning")


def test_a_run_beside_a_damaged_checkpoint_ends_alike(images: Dataset, tmp_path: Path) -> None:
    wanted = spec("er")
    expected, _ = finished(wanted, images, tmp_path / "whole")
    interrupted(wanted, images, tmp_path, 7, 9)
    _no_points(checkpoint_paths(tmp_path / wanted.name)[0])  # a part of it is loaded
    result, notes = finished(wanted, images, tmp_path)
    assert (result, len(notes)) == (expected, 2)
    left = {path.name for path in (tmp_path / wanted.name).iterdir()}
    assert left == {"result.json", "curves.parquet"}


# ---------------------------------------------------------------- a disk that is full or slow


def test_a_full_disk_is_a_note_and_the_run_goes_on(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_state_file", full)
    source = run_specs([spec("er")], lambda _: images, CPU, tmp_path, every=0, checkpoints=EACH)
    updates = list(source)
    (result,) = [u.result for u in updates if u.result]
    assert result["status"] == "complete"
    why = "No space left on device"
    line = f"no checkpoint can be written in {tmp_path}: {why}; the runs continue"
    assert {u.note for u in updates if u.note} == {line}


def test_no_step_waits_for_a_disk(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a write hangs, the steps go on and no second write begins."""
    go_on, begun = threading.Event(), list[Path]()

    def slow(path: Path, state: Any) -> None:
        begun.append(path)
        assert go_on.wait(30)
        write_state_file(path, state)

    monkeypatch.setattr(module, "write_state_file", slow)
    run = Run(spec("er"), images, CPU)
    keeper = Keeper(run, tmp_path, EACH, print)
    for _ in run.steps():
        keeper.after_step()
    assert run.taken == run.total
    assert len(begun) == 1
    go_on.set()
    keeper.close()
    (path,) = checkpoint_paths(tmp_path)
    assert read_state_file(path)["meta"]["taken"] == 1  # the state as it was then


def test_a_copy_that_finds_no_memory_is_a_note(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(module, "copy_state", none_left)
    run, told = Run(spec("er"), images, CPU), list[str]()
    keeper = Keeper(run, tmp_path, EACH, told.append)
    next(run.steps())
    keeper.after_step()
    assert told == [
        f"no checkpoint can be written in {tmp_path.parent}: no room; the runs continue"
    ]


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("checkpoint-x.safetensors", "checkpoint-00000003.safetensors.bak", "result.json"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "checkpoint-00000012.safetensors").write_text("")
    assert len(checkpoint_paths(tmp_path)) == 1
    remove_checkpoints(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert checkpoint_paths(tmp_path / "none") == []


def test_a_failed_run_keeps_its_checkpoints(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = spec("er")
    take = dualcba.Learner.observe_on_device

    def fails_at_ten(learner: Any, *given: Any, **more: Any) -> None:
        if learner.step == 10 and learner.seed == 0:
            raise RuntimeError("no")
        take(learner, *given, **more)

    failed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(dualcba.Learner, "observe_on_device", fails_at_ten)
        updates = run_specs(
            [wanted, replace(wanted, seed=1)], lambda _: images, CPU, tmp_path, every=0,
            failed=lambda one, error: failed.append(f"{one.seed} {error}"), checkpoints=EACH,
        )  # fmt: skip
        assert [u.spec.seed for u in updates if u.result] == [1]
    assert failed == ["0 no"]
    assert checkpoint_paths(tmp_path / wanted.name)
    expected, _ = finished(wanted, images, tmp_path / "whole")
    assert finished(wanted, images, tmp_path)[0] == expected


# ---------------------------------------------------------------- on a GPU


def on_gpu(wanted: Spec, data: Dataset, engine: str = "captured") -> Run:
    hardware = Hardware(device="cuda", engine=engine, precision="fp32")  # type: ignore[arg-type]
    return Run(wanted, data, hardware)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser-cba", "bic", "icarl"])
def test_on_a_gpu_a_run_goes_on_alike(
    method: str, engine: str, images: Dataset, tmp_path: Path, differ: Any
) -> None:
    """Copies are taken of a run that has been captured and goes on at once, without waiting.

    The first steps after a checkpoint run eagerly, which equals captured ones up to rounding.
    """
    wanted = spec(method, record=["prequential"], batch_size=8)
    whole = on_gpu(wanted, images, engine)
    keeper = Keeper(whole, tmp_path, Interval(steps=whole.total // 2), print)
    for _ in whole.steps():
        keeper.after_step()
    keeper.close()
    result, state = whole.result(), whole.learner.state_dict()
    again = resumed(lambda: on_gpu(wanted, images, engine), tmp_path, print)
    assert 0 < again.taken <= whole.total
    for _ in again.steps():
        pass
    after = again.learner.state_dict()
    assert after["meta"] == state["meta"]
    if engine == "eager":
        assert without_cost(again.result()) == without_cost(result)
        assert differ(after, state) == []
    for name, tensor in state["tensors"].items():
        torch.testing.assert_close(after["tensors"][name], tensor, rtol=1e-3, atol=1e-4)


def without_cost(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in ("seconds", "cost")}


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*prototype.*")
def test_on_a_gpu_a_copy_does_not_wait(images: Dataset) -> None:
    run = on_gpu(spec("er-dual-cba", batch_size=8), images)
    for _ in run.steps():
        if run.taken > 12:
            break
    with no_waiting():
        copied = module.copy_state(run)
    run.engine.finish()
    assert copied.ready
    assert copied.sound
    tensors: dict[str, Tensor] = copied.state["tensors"]
    assert all(not t.is_cuda for t in tensors.values())
    assert len(run.engine.entries) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_refused_step_that_is_not_reported_leaves_no_checkpoint(
    device: str, images: Dataset, tmp_path: Path
) -> None:
    """Its NaN is not in the state, so a run that goes on from there would lose the error."""
    wanted = spec("er", lr=1e30)
    run = on_gpu(wanted, images) if device == "cuda" else Run(wanted, images, CPU)
    run.learner.parts.training_step.stay_on_device()
    for _ in run.steps():
        if run.taken == 6:
            break
    Keeper(run, tmp_path, EACH, print).save_now()
    assert checkpoint_paths(tmp_path) == []
    with pytest.raises(FloatingPointError):
        run.learner.check_finite()
    Keeper(run, tmp_path, EACH, print).save_now()
    assert len(checkpoint_paths(tmp_path)) == 1


def test_a_copy_on_a_cpu_is_a_copy() -> None:
    tensor = torch.ones(3)
    copy = to_host(tensor)
    tensor.zero_()
    assert copy.tolist() == [1, 1, 1]


def test_an_update_has_a_note() -> None:
    assert RunUpdate(spec("er"), 1, 2).note is None
