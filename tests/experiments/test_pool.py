"""Runs in several processes: the same results, and a clean end whatever happens."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dualcba.checkpoint import read_state_file
from dualcba.experiments import Hardware, Loader, Result, Run, Spec
from dualcba.experiments.checkpoints import checkpoint_paths
from dualcba.experiments.pool import (
    ENDED_TWICE,
    cores,
    missing_runs,
    process_count,
    run_specs,
    run_specs_in_processes,
    sendable,
)
from dualcba.experiments.scheduler import few_threads, run_all
from dualcba.experiments.store import read_results, write_plan
from dualcba.options.values import Interval

CPU = Hardware(device="cpu")


def specs(*methods: str, **given: Any) -> list[Spec]:
    fields: dict[str, Any] = {"dataset": "digits", "eval_every": 0, "batch_size": 32} | given
    return [Spec(method=m, seed=k, **fields) for m in methods for k in (0, 1)]


def timeless(out: Path) -> list[Result]:
    return [replace(r, seconds={}) for r in read_results(out).values()]


def test_two_processes_give_what_one_gives_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = specs("er", "er-dual-cba", record=["predictions"])
    alone = list(run_specs(wanted, Loader(), CPU, tmp_path / "1"))
    shared = list(run_specs_in_processes(wanted, Loader(), CPU, tmp_path / "2", 2))
    done = [news for news in shared if news.result is not None]
    assert {n.spec.name for n in done} == {spec.name for spec in wanted}
    assert len([n for n in alone if n.result]) == len(done) == 4
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")
    parts = [sorted(p.relative_to(tmp_path / k) for p in (tmp_path / k).rglob("*")) for k in "12"]
    assert parts[0] == parts[1]
    a, b = (next((tmp_path / k).glob("*dual*/*.safetensors")).read_bytes() for k in "12")
    assert a == b
    assert not multiprocessing.active_children()
    assert capfd.readouterr() == ("", "")


def test_what_stops_a_run_is_raised_here(tmp_path: Path) -> None:
    wrong = specs("er", tasks=11)
    with pytest.raises(ValueError, match="11") as caught:
        list(run_specs_in_processes(wrong, Loader(), CPU, tmp_path, 2))
    assert "Traceback" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_costs_its_run_one_retry(tmp_path: Path) -> None:
    """One run is killed once, another one twice; only that one is missing."""
    wanted = specs("er", "er-dual-cba", batch_size=8)
    kills = {wanted[0].name: 1, wanted[2].name: 2}
    source = run_specs_in_processes(wanted, Loader(), CPU, tmp_path / "2", 2)

    def kill_some() -> None:
        for update in source:
            name = update.spec.name
            if update.result is None and kills.get(name):
                kills[name] -= 1
                busy = source.gi_frame.f_locals["pool"].busy
                (process,) = (w.process for w in busy if w.spec.name == name)
                process.kill()

    with pytest.raises(ChildProcessError, match=r"1 of 4 runs are missing: .*fewer --jobs") as lost:
        kill_some()
    assert not any(kills.values())
    assert f"missing: {wanted[2].name};" in str(lost.value)
    assert "; the same command makes the missing runs" in str(lost.value)
    assert not multiprocessing.active_children()
    list(run_specs([wanted[k] for k in (0, 1, 3)], Loader(), CPU, tmp_path / "1"))
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")


def test_where_there_is_a_plan_the_error_names_resume(tmp_path: Path) -> None:
    lost = specs("er", "er-cba", "er-dual-cba")
    write_plan(tmp_path, lost)
    text = missing_runs(lost, 9, tmp_path, ENDED_TWICE)
    assert text.startswith(f"6 of 9 runs are missing: {lost[0].name}, ")
    assert f"{lost[4].name} and 1 more;" in text
    assert f"`dualcba resume {tmp_path}` makes the missing runs" in text
    assert "\n" not in text


def test_processes_that_cannot_start_are_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def ends_at_once(*_: Any) -> tuple[Any, Any]:
        ours, theirs = multiprocessing.Pipe()
        theirs.close()
        started.append(SimpleNamespace(join=lambda _: None, terminate=int, is_alive=lambda: False))
        return started[-1], ours

    monkeypatch.setattr("dualcba.experiments.pool.start_process", ends_at_once)
    with pytest.raises(ChildProcessError, match="ended while they started"):
        list(run_specs_in_processes(specs("er") * 50, Loader(), CPU, tmp_path, 2))
    assert len(started) < 20


class OddError(Exception):
    """An error that cannot be unpickled: its constructor takes two values."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_every_error_of_a_process_reaches_the_parent() -> None:
    for error, kind in ((OddError(1, 2), RuntimeError), (ValueError("1 and 2"), ValueError)):
        got = pickle.loads(pickle.dumps(sendable(error)))
        assert type(got) is kind
        assert "1 and 2" in str(got)
        assert got.__notes__


ORPHANS = """
import multiprocessing, sys, threading
from pathlib import Path
from dualcba.experiments import Hardware, Loader, Spec
from dualcba.experiments.pool import run_specs_in_processes

slow = Spec(method="er", network="resnet18", tasks=1, batch_size=32, eval_every=0, seed=0)

def go(out):
    for update in run_specs_in_processes([slow], Loader(), Hardware(device="cpu"), out, 1):
        print(*(p.pid for p in multiprocessing.active_children()), flush=True)

threading.Thread(target=go, args=(Path(sys.argv[1], "a"),)).start()
go(Path(sys.argv[1], "b"))
"""


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return Path("/proc/self").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """In the middle of a long step; one was started by the main thread, one by another thread."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert parent.stdout is not None
    pids: set[int] = set()
    for _ in range(2):  # the first update of each
        pids |= set(map(int, parent.stdout.readline().split()))
    assert len(pids) == 2
    assert not any(map(gone, pids))
    parent.kill()
    parent.wait()
    give_up = time.monotonic() + 3
    while not all(map(gone, pids)) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert all(map(gone, pids))
    parent.stdout.close()


def test_an_end_in_the_middle_ends_the_processes(tmp_path: Path) -> None:
    source = run_specs_in_processes(specs("er"), Loader(), CPU, tmp_path, 2)
    next(source)
    assert len(multiprocessing.active_children()) == 2
    source.close()
    assert not multiprocessing.active_children()
    assert not list(tmp_path.rglob(".draft-*"))


def test_small_networks_take_one_thread_while_they_run(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        source = run_specs(specs("er"), Loader(), CPU, tmp_path)
        next(source)
        assert torch.get_num_threads() == 1
        source.close()
        assert torch.get_num_threads() == 2
        for large in (specs("er", network="resnet18-slim"), []):
            with few_threads([*large, *specs("er")]):
                assert torch.get_num_threads() == (2 if large else 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("abreast", [1, 2])
def test_so_many_runs_take_turns(abreast: int) -> None:
    turns = islice(run_all(specs("er", "er-cba"), Loader(), CPU, abreast=abreast), 5)
    assert len({run.spec.name for run, _ in turns}) == abreast


def test_a_run_is_gone_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once may be more than a GPU has room for."""
    made: list[weakref.ref[Run]] = []

    def make(*given: Any, **more: Any) -> Run:
        assert not any(ref() for ref in made)
        one = Run(*given, **more)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr("dualcba.experiments.checkpoints.Run", make)
    gc.disable()
    try:
        done = list(run_specs(specs("er-dual-cba", "bic"), Loader(), CPU, tmp_path))
    finally:
        gc.enable()
    assert len(made) == len([news for news in done if news.result]) == 4


def test_how_many() -> None:
    assert process_count(None, 3, CPU) == 1  # a process takes seconds to begin
    assert process_count(None, 1000, CPU) == cores()
    assert process_count(None, 1000, CPU, abreast=2) == 1
    assert [process_count(jobs, 3, CPU) for jobs in (1, 2, 9)] == [1, 2, 3]


def test_a_gpu_takes_runs_side_by_side_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr("dualcba.experiments.pool.resolve_device", lambda _: cuda)
    assert process_count(None, 1000, Hardware()) == 1
    with pytest.raises(ValueError, match="jobs is 2, expected 1 on a GPU, where --abreast"):
        process_count(2, 1000, Hardware())


def test_without_news_only_results(tmp_path: Path) -> None:
    news = list(run_specs(specs("er"), Loader(), CPU, tmp_path, every=0))
    assert [n.result is not None for n in news] == [True, True]
    assert all(n.step == n.total for n in news)


def test_another_process_refuses_data_that_has_changed(tmp_path: Path) -> None:
    """A worker loads the dataset itself, perhaps after it was overwritten."""
    path, x, y = tmp_path / "own.npz", np.zeros((20, 2), np.float32), np.arange(20) % 4
    np.savez(path, x=x, y=y)
    spec, load = Spec(dataset=str(path), network="mlp"), Loader()
    data = load(spec)
    assert copy(load)(spec).digest == data.digest
    np.savez(path, x=x + 1, y=y)
    with pytest.raises(ValueError, match=r"own.npz has changed: digest .* expected .*--out$"):
        copy(load)(spec)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_can_be_left_out(jobs: int, tmp_path: Path) -> None:
    wild, *good = specs("er", "er-cba")
    wanted = [replace(wild, lr=1e30), *good]
    failed: list[tuple[Spec, str]] = []

    def note(spec: Spec, error: Exception) -> None:
        failed.append((spec, type(error).__name__))

    if jobs == 1:
        updates = run_specs(wanted, Loader(), CPU, tmp_path, abreast=2, failed=note)
    else:
        updates = run_specs_in_processes(wanted, Loader(), CPU, tmp_path, jobs, failed=note)
    done = {update.spec.name for update in updates if update.result}
    assert done == {spec.name for spec in good}
    assert failed == [(wanted[0], "FloatingPointError")]


def test_the_run_of_a_process_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    wanted = specs("er", batch_size=10)[:1]
    (whole,) = [u.result for u in run_specs(wanted, Loader(), CPU, tmp_path / "1") if u.result]
    notes, results, killed = [], [], 0
    for update in run_specs_in_processes(
        wanted, Loader(), CPU, tmp_path / "2", 1, checkpoints=Interval(steps=1)
    ):
        notes += [update.note] * (update.note is not None)
        results += [update.result] * (update.result is not None)
        if not killed and checkpoint_paths(tmp_path / "2" / wanted[0].name):
            (killed,) = [one.pid for one in multiprocessing.active_children() if one.pid]
            os.kill(killed, signal.SIGKILL)
    assert [r | {"seconds": 0} for r in results] == [whole | {"seconds": 0}]
    (note,) = notes
    assert f"{wanted[0].name} continues after " in note
    assert not checkpoint_paths(tmp_path / "2" / wanted[0].name)


def test_the_runs_of_processes_that_are_ended_leave_a_checkpoint(tmp_path: Path) -> None:
    (wanted,) = specs("er", batch_size=2)[:1]
    source = run_specs_in_processes(
        [wanted], Loader(), CPU, tmp_path, 1, checkpoints=Interval(seconds=3600)
    )
    assert next(source).step == 1
    source.close()
    (path,) = checkpoint_paths(tmp_path / wanted.name)
    assert read_state_file(path)["meta"]["taken"] >= 1


def test_runs_that_cannot_begin_can_be_left_out(tmp_path: Path) -> None:
    failed: list[str] = []
    wanted = [replace(spec, batch_size=5000) for spec in specs("er")]
    found = run_specs(
        wanted, Loader(), CPU, tmp_path, failed=lambda spec, error: failed.append(str(error))
    )
    assert list(found) == []
    assert len(failed) == 2
