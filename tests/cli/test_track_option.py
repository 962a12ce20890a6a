"""`--track` on the command line and in a TOML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dualcba.report import tracking
from dualcba.report.trackers import TRACKERS

Run = Callable[..., Any]
SHORT = ("--eval-every", 0, "--batch-size", 300, "--tasks", 1, "--device", "cpu")


class Broken:
    """A tracker that fails at the start."""

    def start(self, run: object) -> None:
        raise ConnectionError("no server")

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None: ...


def test_a_tracker_that_fails_does_not_stop_runs(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "mlflow", ("", ()))
    monkeypatch.setattr(tracking, "make_tracker", lambda _: Broken())
    got = dualcba("run", "--method", "er", "--seeds", 2, "--track", "mlflow", "--out", "x",
                  "--json", *SHORT)  # fmt: skip
    assert got.code == 0
    assert got.err == "dualcba: mlflow failed and is disabled, the runs continue: no server\n"
    assert len(json.loads(got.out)) == 2


def test_names_are_checked_before_any_run(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", ("", ("no_such_module",)))
    file = tmp_path / "a.toml"
    file.write_text('method = "er"\ntrack = ["wandb"]\n')
    for given, says in (
        (("run", "--track", "wandbb"), "track is 'wandbb', expected 'tensorboard' or"),
        (("run", file), "track is 'wandb' and no_such_module is missing, expected `pip install"),
        (("reproduce", "bilevel", "--scale", "small", "--track", "wandb"), "pip install"),
    ):
        got = dualcba(*given)
        assert (got.code, got.out, got.files) == (2, "", [])
        assert says in got.err
        assert len(got.lines) == 1
