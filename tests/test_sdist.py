"""The source distribution has what the repository needs to be tested and read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("tests", "docs", "examples", "tools", "benchmarks", "results")


def copy_of_the_repository(to: Path) -> None:
    """Copy without `src/*.egg-info`, whose list of files would hide what MANIFEST.in lacks."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in (*PARTS, "src"):
        shutil.copytree(ROOT / part, to / part, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, to)


def test_tests_docs_and_changelog_are_in_the_sdist(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    root = tmp_path / "repository"
    root.mkdir()
    copy_of_the_repository(root)
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {str(p.relative_to(root)) for part in PARTS for p in (root / part).rglob("*.*")}
    assert {p for p in wanted if (root / p).is_file()} - found == set()
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"} <= found
    assert not [name for name in found if "__pycache__" in name]


def test_a_variable_chooses_the_index_of_torch() -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    command = ["make", "-n", "-B", ".venv/.ready", "TORCH_INDEX=an-index", "TORCH=torch==2.6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert '--index-url an-index "torch==2.6"' in done.stdout
