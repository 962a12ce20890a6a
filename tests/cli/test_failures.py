"""Runs that fail, are interrupted or take long: what the command line says and keeps."""

from __future__ import annotations

import errno
import io
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from dualcba import Learner
from dualcba.cli.failures import Failures, one_line
from dualcba.cli.progress import Bars
from dualcba.experiments import Spec, pool, read_results
from dualcba.experiments.checkpoints import checkpoint_paths
from dualcba.experiments.eta import Remaining
from dualcba.experiments.pool import RunUpdate
from dualcba.experiments.stopping import Stop

Call = Callable[..., Any]
QUICK = ("--eval-every", 0, "--batch-size", 32, "--device", "cpu", "--jobs", 1)


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a function before a step of one seed."""
    take = Learner.observe_on_device

    def patch(seed: int, step: int, act: Callable[[], None]) -> None:
        def acting(learner: Learner, *given: Any, **more: Any) -> None:
            if (learner.seed, learner.step) == (seed, step):
                act()
            take(learner, *given, **more)

        monkeypatch.setattr(Learner, "observe_on_device", acting)

    return patch


def fail() -> None:
    raise FloatingPointError("the loss became nan at step 6")


def bug() -> None:
    raise KeyError("a mistake in a method")


# ---------------------------------------------------------------- a run that fails


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_failed_run_does_not_stop_the_others(command: str, dualcba: Call, at_step: Call) -> None:
    args = ("run", "--method", "er", "--seeds", 3, "--out", "x", *QUICK)
    at_step(1, 5, fail)
    got = dualcba(*args)
    if command == "resume":
        got = dualcba("resume", "x", "--device", "cpu")
        assert got.lines[-1] == "dualcba: the loss became nan at step 6"  # of the only one left
    else:
        name = "digits-online-er-b100-s1"
        assert f"dualcba: 1 of 3 runs failed: {name}" in got.lines[-1]
        end = "the loss became nan at step 6; the others are kept; continue with `dualcba resume x`"
        assert got.lines[-1].endswith(end)
        assert "2 results in x" in got.out
    assert got.code == 1
    assert len(list((got.folder / "x").glob("*/result.json"))) == 2
    assert "Traceback" not in got.err


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_sweep_with_failed_runs_says_how_many_are_complete(
    command: str, dualcba: Call, at_step: Call
) -> None:
    args = ("--method", "er", "--seeds", 2, "--sweep", "buffer=20,50", "--out", "x", *QUICK)
    at_step(1, 5, fail)
    got = dualcba("run", *args)
    assert got.code == 1
    if command == "resume":
        next(got.folder.glob("x/*/result.json")).unlink()
        got = dualcba("resume", "x", "--device", "cpu")
    words = " ".join(got.out.split())
    assert "2 of 4 runs are complete; the best may change" in words
    assert "buffer 20" in words or "buffer 50" in words


def test_a_result_that_cannot_be_written_does_not_stop_the_others(
    dualcba: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pool.write_result

    def full(out: Path, spec: Spec, *given: Any) -> None:
        if spec.seed == 0:
            raise OSError(errno.ENOSPC, "No space left on device", "agnostic.safetensors")
        write(out, spec, *given)

    monkeypatch.setattr(pool, "write_result", full)
    got = dualcba("run", "--method", "er", "--seeds", 2, "--out", "x", *QUICK)
    assert got.code == 1
    assert "1 of 2 runs failed: digits-online-er-b100-s0" in got.err
    assert "No space left on device" in got.err
    assert "continue with `dualcba resume x`" in got.err
    monkeypatch.undo()
    assert dualcba("resume", "x", "--device", "cpu").code == 0
    assert len(read_results(got.folder / "x")) == 2


def test_a_table_whose_runs_have_all_failed_says_why(dualcba: Call, at_step: Call) -> None:
    at_step(0, 5, fail)
    got = dualcba("reproduce", "alignment", "--scale", "small", "--seeds", 1, "--row", "ER;ER-CBA",
                  "--out", "x", "--jobs", 1, "--device", "cpu", "--quiet")  # fmt: skip
    assert got.code == 1
    assert "2 of 2 runs failed: " in got.lines[-1]
    assert not list(got.folder.glob("x/tables/*"))


def test_a_mistake_in_the_code_is_shown_with_its_traceback(dualcba: Call, at_step: Call) -> None:
    at_step(0, 5, bug)
    got = dualcba("run", "--method", "er", "--seeds", 2, "--out", "x", "--quiet", *QUICK)
    assert got.code == 1
    assert got.lines[0] == "Traceback (most recent call last):"
    assert "KeyError: 'a mistake in a method'; the others are kept" in got.lines[-1]
    assert len(list((got.folder / "x").glob("*/result.json"))) == 1


def test_the_json_of_the_others_is_printed(dualcba: Call, at_step: Call) -> None:
    at_step(1, 5, fail)
    got = dualcba("run", "--method", "er", "--seeds", 2, "--out", "x", "--json", *QUICK)
    assert (got.code, len(got.lines)) == (1, 1)
    assert [one["seed"] for one in json.loads(got.out)] == [0]


def test_many_failures_are_counted() -> None:
    failures = Failures(print)
    for seed in range(8):
        failures.add(Spec(method="er", seed=seed), ValueError("bad\nvalue"))
    line = failures.message(9, "do it again")
    assert line.startswith("8 of 9 runs failed: digits-online-er-b100-s0: bad value; ")
    assert line.endswith("s4: bad value; and 3 more; the others are kept; do it again")


def test_errors_as_lines() -> None:
    room = "; expected enough memory, try fewer --abreast or --jobs"
    assert one_line(MemoryError()) == "out of memory" + room
    assert one_line(RuntimeError("x DefaultCPUAllocator: not enough.")) == "not enough" + room
    assert one_line(RuntimeError("a mistake")) is None


# ---------------------------------------------------------------- a run that is interrupted


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupted_run_goes_on_from_its_last_step(
    name: str, dualcba: Call, at_step: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(signal, name):
        pytest.skip("Windows has no SIGHUP")
    number = getattr(signal, name)
    args = ("run", "--method", "er-dual-cba", "--json", *QUICK)
    whole = json.loads(dualcba(*args, "--out", "whole").out)
    with monkeypatch.context():
        at_step(0, 7, lambda: signal.raise_signal(number))
        got = dualcba(*args, "--out", "x")
    kept = "complete runs and checkpoints are kept; continue with `dualcba resume x`"
    assert (got.code, got.lines[-1]) == (128 + number, f"dualcba: interrupted; {kept}")
    (folder,) = (path for path in (got.folder / "x").iterdir() if path.is_dir())
    (path,) = checkpoint_paths(folder)
    assert path.stem.endswith("-00000008")  # the step in which the signal came is complete
    monkeypatch.undo()
    monkeypatch.chdir(got.folder)
    again = dualcba("resume", "x", "--device", "cpu", "--json")
    assert (again.code, len(again.lines)) == (0, 1)
    assert "continues after 8 of " in again.lines[0]
    (one,), (other,) = json.loads(again.out), whole
    assert one | {"seconds": 0} == other | {"seconds": 0}
    assert not checkpoint_paths(folder)


def test_without_checkpoints_an_interrupt_is_immediate(dualcba: Call, at_step: Call) -> None:
    at_step(0, 7, lambda: signal.raise_signal(signal.SIGINT))
    got = dualcba("run", "--method", "er", "--out", "x", "--checkpoint-every", "off", *QUICK)
    assert got.code == 130
    assert [p.name for p in (got.folder / "x").iterdir()] == ["plan.json"]


def listen_for_two(stop: Stop) -> None:
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second signal had no effect")


def test_a_second_signal_takes_effect_at_once() -> None:
    stop = Stop()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        listen_for_two(stop)
    assert not stop.requested
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_nobody_asked_about_takes_effect_at_the_end() -> None:
    stop = Stop()
    with pytest.raises(KeyboardInterrupt), stop.listening():
        signal.raise_signal(signal.SIGINT)


def sleep_after_a_signal(stop: Stop) -> None:
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        time.sleep(20)
        raise AssertionError("the signal had no effect")


def test_a_long_step_does_not_delay_a_signal_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualcba.experiments.stopping.PATIENCE", 0.05)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sleep_after_a_signal(Stop())
    assert time.monotonic() - begun < 15


def save_after_a_signal(stop: Stop, saved: list[bool]) -> None:
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        stop.heed()
        time.sleep(0.5)
        saved.append(True)
        stop.take_effect()


def test_a_long_save_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a second signal would: a checkpoint of a large network may take many seconds."""
    monkeypatch.setattr("dualcba.experiments.stopping.PATIENCE", 0.05)
    saved: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        save_after_a_signal(Stop(), saved)
    assert saved == [True]


def test_checkpoints_of_complete_runs_are_removed_by_resume(dualcba: Call) -> None:
    """A process may be killed between the result and their removal."""
    got = dualcba("run", "--method", "er", "--out", "x", "--quiet", *QUICK)
    (result,) = (got.folder / "x").glob("*/result.json")
    left = result.with_name("checkpoint-00000012.safetensors")
    left.write_text("left")
    assert dualcba("resume", "x", "--quiet", "--device", "cpu").code == 0
    assert not left.exists()


@pytest.mark.parametrize("value", ["0", "-1", "5x", "1.5steps", "", "nan", "1e3"])
def test_bad_intervals_are_one_line(value: str, dualcba: Call) -> None:
    got = dualcba("run", "--checkpoint-every", value)
    assert (got.code, len(got.lines)) == (2, 1)
    assert "checkpoint_every" in got.err
    assert "'5m', '1h', '200steps' or 'off'" in got.err


# ---------------------------------------------------------------- progress


def bars(terminal: bool) -> tuple[Bars, io.StringIO, list[float]]:
    clock, text = [0.0], io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200)
    progress = Progress(console=console, get_time=lambda: clock[0], auto_refresh=False)
    return Bars(progress, 4), text, clock


def test_without_a_terminal_a_line_comes_every_minute() -> None:
    shown, text, clock = bars(terminal=False)
    spec = Spec(method="er")
    for second in range(0, 181, 10):
        clock[0] = float(second)
        shown.show(RunUpdate(spec, 1 + second, 1000, None))
    lines = text.getvalue().splitlines()
    assert len(lines) == 3
    assert (
        lines[0] == "dualcba: 0 of 4 runs complete; er seed 0 at step 61 of 1000; about 66 min left"
    )


def test_in_a_terminal_there_are_no_lines() -> None:
    shown, text, clock = bars(terminal=True)
    for second in range(0, 181, 10):
        clock[0] = float(second)
        shown.show(RunUpdate(Spec(method="er"), 1 + second, 1000, None))
    assert "runs complete" not in text.getvalue()


def test_a_note_is_shown_once() -> None:
    shown, text, _ = bars(terminal=False)
    for step in (1, 2):
        shown.show(RunUpdate(Spec(method="er"), step, 9, note="the disk is [full]"))
    assert text.getvalue() == "dualcba: the disk is [full]\n"


def test_the_estimate_follows_the_load() -> None:
    """A slow beginning, as on a busy machine, is forgotten within minutes."""
    rest = Remaining(runs=2)
    now = 0.0
    for step in range(1, 11):  # a step a minute
        now += 60
        rest.update("a", step, 1000, now)
    slow = rest.seconds(now)
    assert slow == pytest.approx(60 * 1990)
    for step in range(11, 800):  # then one a second
        now += 1
        rest.update("a", step, 1000, now)
    assert rest.seconds(now) == pytest.approx(1201, rel=0.01)


def test_steps_before_a_checkpoint_say_nothing_about_the_pace() -> None:
    rest = Remaining(runs=1)
    rest.update("a", 900, 1000, now=0.0)
    assert rest.words(0.0) == ""
    rest.update("a", 910, 1000, now=10.0)
    assert rest.seconds(10.0) == 90


def test_the_folder_is_named_in_an_interrupt(tmp_path: Path) -> None:
    from dualcba.cli.failures import resume_hint

    assert resume_hint(tmp_path / "x") == f"continue with `dualcba resume {tmp_path / 'x'}`"
