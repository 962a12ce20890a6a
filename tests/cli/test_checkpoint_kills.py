"""Runs with a checkpoint at every step, killed by SIGKILL at random moments and during a write.

A bounded sample by default; `DUALCBA_FUZZ=full` kills a hundred runs, each method and adaptor among
them, and resumes each until it is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import dualcba.cli.run  # noqa: F401 - imported once instead of in each copy of this process
from dualcba.checkpoint import read_state_file
from dualcba.cli.app import main
from dualcba.experiments import checkpoints
from dualcba.experiments.checkpoints import checkpoint_paths
from dualcba.experiments.run import Run
from dualcba.experiments.store import LOCK
from dualcba.methods import method_names

FULL = os.environ.get("DUALCBA_FUZZ") == "full"
RUNS = 100 if FULL else 1
MOST = 4 if FULL else 3  # kills of one run
EVERY = ("--checkpoint-every", "1steps", "--jobs", "1", "--device", "cpu")
STATE = "final.safetensors"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def start(prepare: Callable[[], None], log: Path, *args: object) -> int:
    """Start a command in a copy of this process, which has imported torch; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        sys.stdout = sys.stderr = log.open("a", buffering=1)
        sys.argv = ["dualcba", *map(str, args), *EVERY, "--quiet"]
        prepare()
        main()
    except SystemExit as stop:
        os._exit(stop.code if isinstance(stop.code, int) else 0)
    finally:
        os._exit(70)


def keep_the_last_state() -> None:
    """Let a run also write the state of its learner when it is complete."""
    files = Run.files

    def with_state(run: Run) -> dict[str, Callable[[Path], None]]:
        return {**files(run), STATE: run.learner.save}

    Run.files = with_state  # type: ignore[method-assign]


def killed_in_a_write(number: int, delay: float) -> Callable[[], None]:
    """Let a process kill itself some time after the beginning of a write of a checkpoint."""

    def prepare() -> None:
        keep_the_last_state()
        write, count = checkpoints.write_state_file, [0]

        def dying(path: Path, state: Any) -> None:
            count[0] += 1
            if count[0] == number:
                me = os.getpid()
                threading.Timer(delay, os.kill, (me, signal.SIGKILL)).start()
            write(path, state)

        checkpoints.write_state_file = dying  # type: ignore[attr-defined]

    return prepare


def contents(out: Path) -> dict[str, Any]:
    """Return the results, without times, and the last states of the runs below a folder."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*/*")):
        if path.name == "result.json":
            result = json.loads(path.read_text())
            found[path.name] = {k: v for k, v in result.items() if k != "seconds"}
        elif not path.name.startswith(("checkpoint-", ".draft-", LOCK)):
            found[path.name] = path.read_bytes()
    return found


def check_files(out: Path) -> int:
    """Check that each checkpoint on the disk is sound, two at most; return the newest position."""
    paths = [path for folder in out.glob("*/") for path in checkpoint_paths(folder)]
    positions = [read_state_file(path)["meta"]["taken"] for path in paths]
    assert len(paths) <= 3  # two, and one whose older ones were not removed yet
    return max(positions, default=0)


def killed_until_done(
    args: Sequence[object], out: Path, log: Path, longest: float, rng: Random
) -> tuple[int, int]:
    """Kill a run up to `MOST` times; return how often, and where it went on the last time."""
    kills = reached = 0
    while True:
        complete = list(out.glob("*/result.json"))  # then checkpoints are only removed
        words = ("resume", out) if (out / "plan.json").exists() else (*args, "--out", out)
        in_write = kills < MOST and rng.random() < 0.5
        dying = killed_in_a_write(rng.randint(1, 4), rng.uniform(0, 0.01))
        pid = start(dying if in_write else keep_the_last_state, log, *words)
        if kills < MOST and not in_write:
            time.sleep(rng.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0, log.read_text()
            return kills, 0 if complete else reached
        kills += 1
        before, reached = reached, check_files(out)
        assert reached >= before or list(out.glob("*/result.json"))  # no run loses what it had


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_and_resumed_inside_a_run(number: int, dualcba: Any, tmp_path: Path) -> None:
    rng = Random(number)
    method = method_names()[number % len(method_names())] if FULL else "er-dual-cba"
    args = ("run", "--method", method, "--seed", number, "--batch-size", 64, "--eval-every", 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "files", Run.files)  # restored afterwards
        keep_the_last_state()
        for name in ("warm", "whole"):  # all is imported when the second one is timed
            begun = time.monotonic()
            assert dualcba(*args, *EVERY, "--quiet", "--out", tmp_path / name).code == 0
            longest = time.monotonic() - begun
    log, tries = tmp_path / "log", 0
    kills, reached, out = 0, 0, tmp_path
    while not kills:  # the first kill may come too late
        tries += 1
        out = tmp_path / str(tries)
        kills, reached = killed_until_done(args, out, log, longest / tries, rng)
    assert contents(out) == contents(tmp_path / "whole")
    assert {"result.json", STATE} <= contents(out).keys()
    assert not list(out.rglob("checkpoint-*"))
    assert "left out" not in log.read_text()
    assert not reached or f"continues after {reached} of " in log.read_text()
    print(f"{method}: killed {kills} times, resumed from {reached} at last")
