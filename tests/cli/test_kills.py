"""`run`, `resume` and `reproduce` under SIGKILL at random times: nothing torn, equal results.

A bounded sample by default; `DUALCBA_FUZZ=full` kills more than a hundred times.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import dualcba.cli.run  # noqa: F401 - imported once instead of in each copy of this process
from dualcba.cli.app import main
from dualcba.experiments.store import LOCK

FULL = os.environ.get("DUALCBA_FUZZ") == "full"
ARGS = ("--method", "er,er-dual-cba", "--seeds", "2", "--eval-every", "0", "--batch-size", "128")
SMALL = ("--scale", "small", "--seeds", "1")
TABLES = (".html", ".csv", ".md", ".tex", ".png", ".pdf", ".svg")  # made anew, with times in them
Contents = dict[str, Any]

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def start(*args: object) -> int:
    """Start a command in a copy of this process, which has imported torch; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.argv = ["dualcba", *map(str, args), "--device", "cpu", "--quiet"]
        main()
    except SystemExit as stop:
        os._exit(stop.code if isinstance(stop.code, int) else 0)
    finally:
        os._exit(70)


def go_on(command: str, out: Path, jobs: int) -> int:
    """Start `reproduce`, or `resume` where there is a plan, or `run`."""
    if command == "reproduce":
        words: tuple[object, ...] = ("reproduce", "bilevel", *SMALL, "--out", out)
    elif (out / "plan.json").exists():
        words = ("resume", out)
    else:
        words = ("run", *ARGS, "--out", out)
    return start(*words, "--jobs", jobs)


def contents(out: Path) -> Contents:
    """Return all files of the runs but drafts, without times; fails if one is torn."""
    found: Contents = {}
    for path in sorted(out.rglob("*/*")):
        if path.is_dir() or path.suffix in TABLES:
            continue
        if path.name == "result.json":
            result = json.loads(path.read_text())
            found[str(path.relative_to(out))] = {k: v for k, v in result.items() if k != "seconds"}
        elif not path.name.startswith((".draft-", LOCK)):
            found[str(path.relative_to(out))] = path.read_bytes()
    return found


def workers(pid: int) -> list[int]:
    """Return the worker processes of a process, on Linux."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def wait_for_group(group: int) -> None:
    """Wait until the processes of a group have ended, at most 3 seconds."""
    give_up = time.monotonic() + 3
    while time.monotonic() < give_up:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.02)
    raise AssertionError(f"processes outlived {group}")


def kill_until_done(
    command: str, out: Path, jobs: int, longest: float, rng: Random, expected: Contents, most: int
) -> tuple[int, int]:
    """Kill the command, or a worker of it, up to `most` times; return how often of each."""
    commands = killed_workers = 0
    while True:
        pid = go_on(command, out, jobs)
        if commands + killed_workers < most:
            time.sleep(rng.uniform(0, longest))
            victims = workers(pid) if jobs > 1 and rng.random() < 0.5 else []
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed_workers += 1
            else:
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        wait_for_group(pid)
        found = contents(out)
        assert not {name: found[name] for name in found if found[name] != expected.get(name)}
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            assert contents(out) == expected
            return commands, killed_workers
        commands += 1


CASES = [("run", 1, 100 if FULL else 3), ("reproduce", 1, 100 if FULL else 2)]


@pytest.mark.parametrize(
    ("command", "jobs", "kills"), [*CASES, *([("run", 2, 16)] if FULL else [])]
)
def test_killed_and_resumed(command: str, jobs: int, kills: int, tmp_path: Path) -> None:
    rng = Random(jobs)
    begun = time.monotonic()
    _, status = os.waitpid(go_on(command, tmp_path / "whole", jobs), 0)
    longest = time.monotonic() - begun
    assert status == 0
    expected = contents(tmp_path / "whole")
    assert len(expected) >= 6
    done, folders = [0, 0], 0
    while sum(done) < kills:
        folders += 1
        out = tmp_path / str(folders)
        most = min(5, kills - sum(done))
        found = kill_until_done(command, out, jobs, longest, rng, expected, most)
        done = [a + b for a, b in zip(done, found, strict=True)]
    drafts = len(list(tmp_path.rglob(".draft-*")))
    print(f"{command} {jobs=}: killed {done[0]} commands, {done[1]} workers, {folders=}, {drafts=}")
