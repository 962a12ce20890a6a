"""`dualcba watch`, and runs that write what it shows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dualcba.cli import watch as command
from dualcba.experiments import Hardware, Loader, Spec, pool, read_results
from dualcba.monitoring import read_watch, watch_files
from dualcba.monitoring.files import WATCH, write_watch

Run = Callable[..., Any]
QUICK = ("--method", "er", "--network", "mlp", "--tasks", "2", "--eval-every", "0", "--quiet")


def content(status: str = "running", **fields: Any) -> dict[str, Any]:
    age = {"known": 3, "mean": 4.0, "median": 4.0, "max": 9, "histogram": [1, 0, 2]}
    one = {"side": "old", "samples": 9, "accuracy": 90.0, "answers": 50.0, "memory": 4}
    return {
        "schema": 1, "status": status, "time": time.time(), "step": 10, "task": 1, "samples": 100,
        "accuracy": 61.5, "window": {"size": 50, "samples": 50, "accuracy": 70.0, "curve": [70.0]},
        "classes": [{"class": name, **one} for name in ("ant", "bee")],
        "confusion": [["ant", "bee", 3]], "loss": {"last": 0.25, "mean": None},
        "memory": {"size": 20, "samples": 8, "age": age}, "correction": None, "outliers": 0,
    } | fields  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "cwd" / "runs"
    write_watch(folder / "x" / "first" / WATCH, content("complete", title="first run"))
    write_watch(folder / "x" / "second" / WATCH, content(total=40))
    return folder


def test_once(dualcba: Run, runs: Path) -> None:
    got = dualcba("watch")  # ./runs by default; without a terminal it shows the numbers once
    assert (got.code, got.err) == (0, "")
    for word in ("first run", "complete", "x/second", "running · now", "10 / 40", "70.0 %", "ant"):
        assert word in got.out
    assert "bee (3)" in got.out
    assert dualcba("watch", runs / "x" / "first" / WATCH, "--once").code == 0


def test_any_terminal_can_show_it(runs: Path) -> None:
    code = "from dualcba.cli.app import main; main()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    command = [sys.executable, "-c", code, "watch", str(runs), "--once"]
    got = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = got.stdout.splitlines()
    assert {len(line) for line in lines} == {80}
    assert "?" not in got.stdout
    assert "#########" in got.stdout  # 90 % of ten


def test_many_runs_are_counted(dualcba: Run, runs: Path) -> None:
    for k in range(3):
        write_watch(runs / f"more-{k}" / WATCH, content("complete"))
    got = dualcba("watch", "--once")
    assert "5 monitors, 1 running" in got.out
    assert "x/second" in got.out  # the one that runs is among those shown


def test_json_and_prometheus(dualcba: Run, runs: Path) -> None:
    found = json.loads(dualcba("watch", runs, "--json").out)
    assert {name: one["status"] for name, one in found.items()} == {
        "x/first": "complete", "x/second": "running",
    }  # fmt: skip
    text = dualcba("watch", runs, "--prometheus").out.splitlines()
    assert 'dualcba_window_accuracy_ratio{run="x/second"} 0.7' in text
    assert 'dualcba_confusion_samples{run="x/first",class="ant",answer="bee"} 3' in text


def test_an_interrupt_says_nothing_of_runs(runs: Path) -> None:
    words = [sys.executable, "-m", "dualcba", "watch", str(runs), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "serving" in process.stderr.readline()
    process.terminate()
    assert process.stderr.read().splitlines() == ["dualcba: interrupted"]
    assert process.wait() == 128 + 15


@pytest.mark.parametrize(
    "given",
    [("--json", "--prometheus"), ("--once", "--port", 0), ("--json", "--port", 0)],
)
def test_options_that_exclude_each_other(dualcba: Run, runs: Path, given: Any) -> None:
    done = dualcba("watch", runs, *given)
    assert done.code == 2
    assert "were given, expected one of --json, --prometheus and --port" in done.err


def test_what_is_missing_or_damaged(dualcba: Run, runs: Path, tmp_path: Path) -> None:
    got = dualcba("watch", "nowhere")
    assert (got.code, len(got.lines)) == (2, 1)
    assert "nowhere is missing, expected a folder of runs" in got.err
    empty = tmp_path / "empty"
    empty.mkdir()
    got = dualcba("watch", empty)
    assert (got.code, len(got.lines)) == (2, 1)
    assert "`dualcba run --watch`" in got.err
    (runs / "x" / "first" / WATCH).write_text("{")
    got = dualcba("watch", runs)
    assert (got.code, len(got.lines)) == (2, 1)
    assert "cannot be read as a monitor's file" in got.err
    assert dualcba("watch", "--port", "99999").code == 2


def test_it_follows_until_all_have_ended(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SECONDS", 0.05)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=60)
    thread = threading.Thread(target=command._follow, args=(runs, console))
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()  # one of them runs
    write_watch(runs / "x" / "second" / WATCH, content("complete", step=40, total=40))
    thread.join(10)
    assert not thread.is_alive()
    assert "10 / 40" in file.getvalue()
    assert "40 / 40" in file.getvalue()


def test_a_run_writes_its_numbers_and_its_result_stays_the_same(dualcba: Run) -> None:
    plain = dualcba("run", *QUICK, "--out", "plain")
    watched = dualcba("run", *QUICK, "--watch", "--out", "watched")
    assert (plain.code, watched.code) == (0, 0), watched.err
    first, second = (
        [result for _, result in read_results(watched.folder / out).items()]
        for out in ("plain", "watched")
    )
    assert [result.scores for result in first] == [result.scores for result in second]
    (file,) = watch_files(watched.folder / "watched")
    found = read_watch(file)
    assert found["status"] == "complete"
    assert found["step"] == found["total"] > 0
    assert found["memory"]["age"]["known"] == found["memory"]["samples"]
    assert not watch_files(watched.folder / "plain")


def test_a_process_with_runs_writes_them_too(tmp_path: Path) -> None:
    sent: list[Any] = []

    class Connection:
        send = sent.append

    spec = Spec(method="er", network="mlp", tasks=2, eval_every=0)
    here = Hardware(device="cpu")
    run = partial(pool.run_specs, load=Loader(), hardware=here, out=tmp_path, watch=True)
    pool._run_and_send(Connection(), spec, run)  # type: ignore[arg-type]
    assert sent[-1].result is not None
    assert [read_watch(file)["status"] for file in watch_files(tmp_path)] == ["complete"]


def test_an_interrupted_and_a_failed_run_say_so(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualcba.experiments.run import Run as OneRun

    train = OneRun._train
    left: list[BaseException | None] = []

    def fail(self: OneRun, *args: Any, **given: Any) -> None:
        if error := left.pop():
            raise error
        train(self, *args, **given)

    monkeypatch.setattr(OneRun, "_train", fail)
    for error, status in ((KeyboardInterrupt(), "stopped"), (FloatingPointError("no"), "failed")):
        left[:] = [*[None] * 999, error, None, None, None]
        got = dualcba("run", *QUICK, "--seeds", "2", "--jobs", "1", "--watch", "--out", status)
        assert got.code != 0
        found = {read_watch(file)["status"] for file in watch_files(got.folder / status)}
        assert status in found
        assert found <= {status, "complete"}
