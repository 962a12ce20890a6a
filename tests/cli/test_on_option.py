"""`--on` on the command line: what is missing or not reachable is one line, before any run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from dualcba.experiments.remote import EXTRAS
from dualcba.experiments.store import read_results

Run = Callable[..., Any]
SHORT = ("--method", "er", "--eval-every", 0, "--batch-size", 300, "--tasks", 1, "--out", "x")


def test_a_missing_extra_is_named(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "slurm"):
        monkeypatch.setitem(EXTRAS, name, ("no_such_module",))
        for command in (("run", *SHORT), ("reproduce", "bilevel", "--scale", "small")):
            got = dualcba(*command, "--on", name)
            assert (got.code, got.out, got.files) == (2, "", [])
            assert got.lines == [
                f"dualcba: on is {name!r} and no_such_module is missing, expected "
                f"`pip install 'dualcba[{name}]'`"
            ]


def test_options_of_another_place_are_refused(dualcba: Run) -> None:
    for given, says in (
        (("--on", "mars"), "on is 'mars', expected 'local' or 'ray' or 'slurm'"),
        (("--ray-address", "a:1"), "ray_address is 'a:1' and on is 'local', expected 'ray'"),
        (("--cpus-per-task", "4"), "cpus_per_task is 4 and on is 'local', expected 'ray' or 'sl"),
        (("--gpus-per-task", "2"), "gpus_per_task is 2.0 and on is 'local', expected 'ray' or "),
        (("--slurm", "time=9"), "slurm is {'time': 9} and on is 'local', expected 'slurm'"),
        (("--slurm", "time"), "--slurm is 'time', expected name=value"),
    ):
        got = dualcba("run", *SHORT, *given)
        assert (got.code, got.files) == (2, [])
        assert says in got.err
        assert len(got.lines) == 1


def test_an_address_that_cannot_be_reached(dualcba: Run) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        got = dualcba("run", *SHORT, "--quiet", "--on", "ray", "--ray-address", address)
    assert got.code != 0
    assert len(got.lines) == 1
    assert f"no Ray cluster at '{address}'" in got.err
    assert "expected the HOST:PORT of a cluster" in got.err


def test_slurm_needs_sbatch_or_the_local_executor(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr("shutil.which", lambda _: None)
    for given, says in (
        ((), "sbatch is missing, expected a machine of a Slurm cluster"),
        (("--slurm", "cluster=pbs"), "cluster of --slurm is 'pbs', expected 'slurm' or 'local'"),
        (("--slurm", "cluster=local", "--slurm", "colour=1"), "submitit refused --slurm: Unknown"),
    ):
        got = dualcba("run", *SHORT, "--quiet", "--on", "slurm", *given)
        assert got.code != 0
        assert says in got.err
        assert len(got.lines) == 1


def test_a_run_by_the_local_executor(dualcba: Run) -> None:
    pytest.importorskip("submitit")
    got = dualcba("run", *SHORT, "--on", "slurm", "--slurm", "cluster=local")
    assert got.code == 0
    assert "1 result in x" in got.out
    assert len(read_results(got.folder / "x")) == 1
