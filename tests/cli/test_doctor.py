"""`dualcba doctor`: what it finds, and that it answers where something is broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dualcba.cli import doctor

Run = Callable[..., Any]


def found(outcome: Any) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(outcome.out)}


def test_one_screen(dualcba: Run) -> None:
    got = dualcba("doctor")
    assert (got.code, got.err, got.files) == (0, "", [])
    lines = got.out.splitlines()
    assert len(lines) < 24
    for word in ("Python", "torch", "Triton", "data folder", "GiB free", "datasets", "extras"):
        assert word in got.out
    assert not [line for line in lines if line.startswith("!")]


def test_datasets_are_those_of_the_folder(dualcba: Run, tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").touch()
    lines = found(dualcba("doctor", "--json", "--data-dir", tmp_path))
    assert lines["datasets"]["found"] == "digits, cifar100"
    assert lines["not there"]["found"].startswith("cifar10, tiny-imagenet, mnist")


def test_a_torch_that_cannot_be_imported_is_a_line(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    got = dualcba("doctor")
    assert got.code == 1
    assert "! torch " in got.out
    assert "runs folder" in got.out


@pytest.mark.parametrize("has", [True, False])
def test_a_cpu_that_is_fast_in_bfloat16(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualcba.engine.torch_private.has_matrix_units", lambda: has)
    (cpu,) = (f for f in doctor.hardware() if f.name == "CPU")
    assert ("--precision bf16" in cpu.found) == has


def test_packages_that_are_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.5.1", "numpy": "2.1.0"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    monkeypatch.setattr(doctor, "_requirements", lambda: ["torch>=2.6", "numpy>=1.26", "rich>=13"])
    (packages,) = (f for f in doctor.software() if f.name == "packages")
    assert not packages.ok
    assert packages.found == (
        "torch is 2.5.1, expected torch>=2.6; rich is missing, expected rich>=13"
    )


def test_extras_are_those_of_the_package() -> None:
    known = metadata.metadata("dualcba").get_all("Provides-Extra")
    assert list(doctor.extras()) == known
    lines = list(doctor.extra_findings({"a": {"x": "1.0"}, "b": {"y": None}, "c": {"z": None}}))
    assert [line.found for line in lines] == [
        "a (1.0)", "b, c; install with, for example, `pip install 'dualcba[b]'`",
    ]  # fmt: skip


def test_a_folder_that_cannot_hold_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "LITTLE", 1e9)
    assert not doctor._free_space("runs folder", tmp_path).ok
    assert doctor._free_space("data folder", tmp_path).ok
