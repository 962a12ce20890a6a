"""Runs in progress are told from those that nobody runs, whatever ends their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dualcba.experiments import Hardware, Loader, Spec, write_plan
from dualcba.experiments.pool import run_specs
from dualcba.experiments.runs import IN_PROGRESS, PLANNED, stored_runs
from dualcba.experiments.store import LOCK
from dualcba.io import is_held, only_process

pytest.importorskip("fcntl")  # Windows has no such locks

CPU = Hardware(device="cpu")
ONE, TWO = (Spec(method="er", seed=k, eval_every=0) for k in (0, 1))

HOLD = """
import sys
from pathlib import Path
from dualcba.io import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def statuses(out: Path) -> list[str]:
    return [run.status for run in stored_runs([out])]


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_a_lock_ends_with_its_process(ending: signal.Signals | None, tmp_path: Path) -> None:
    write_plan(tmp_path, [ONE, TWO])
    path = tmp_path / ONE.name / LOCK
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_held(path)
        assert statuses(tmp_path) == [IN_PROGRESS, PLANNED] == ["in progress", "not run"]
        if ending is not None:
            process.send_signal(ending)
    assert not is_held(path)
    assert statuses(tmp_path) == [PLANNED, PLANNED]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "none" / LOCK)
    assert list(tmp_path.iterdir()) == []
    with only_process(tmp_path / LOCK):
        pass
    assert not is_held(tmp_path / LOCK)
    with only_process(tmp_path / LOCK):
        assert is_held(tmp_path / LOCK)
        assert is_held(tmp_path / LOCK)


def test_a_run_is_in_progress_until_it_is_complete(tmp_path: Path) -> None:
    write_plan(tmp_path, [ONE, TWO])
    seen = [
        (update.spec.seed, update.result is not None, statuses(tmp_path))
        for update in run_specs([ONE, TWO], Loader(), CPU, tmp_path)
    ]
    assert seen[0] == (0, False, [IN_PROGRESS, PLANNED])
    assert (0, True, ["complete", PLANNED]) in seen
    assert (1, False, ["complete", IN_PROGRESS]) in seen
    assert seen[-1] == (1, True, ["complete", "complete"])
    assert not list(tmp_path.rglob(LOCK))


def test_runs_that_end_early_are_not_in_progress(tmp_path: Path) -> None:
    write_plan(tmp_path, [ONE, TWO])
    source = run_specs([ONE, TWO], Loader(), CPU, tmp_path, abreast=2)
    next(source)
    next(source)
    assert statuses(tmp_path) == [IN_PROGRESS, IN_PROGRESS]
    source.close()
    assert statuses(tmp_path) == [PLANNED, PLANNED]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_run_that_fails_is_not_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path, [ONE, TWO])
    monkeypatch.setattr("dualcba.experiments.pool.write_result", _full)
    failed: list[Spec] = []
    source = run_specs([ONE], Loader(), CPU, tmp_path, failed=lambda spec, _: failed.append(spec))
    list(source)
    assert failed == [ONE]
    assert statuses(tmp_path) == [PLANNED, PLANNED]


def _full(*_: object) -> None:
    raise OSError("the disk is full")


@pytest.mark.skipif(os.name != "posix", reason="needs modes")
def test_a_run_without_a_lock_goes_on(tmp_path: Path) -> None:
    """Its lock is held by another process that runs the same, or cannot be written."""
    with only_process(tmp_path / ONE.name / LOCK):
        *_, last = run_specs([ONE], Loader(), CPU, tmp_path)
        assert last.result is not None
    assert (tmp_path / ONE.name / LOCK).exists()  # that of the other process
