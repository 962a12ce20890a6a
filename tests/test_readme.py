"""The README is executed: its Python, and those of its commands that need no download."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dualcba

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def lines(program: str) -> list[str]:
    """The lines of the shell blocks that call a program, without comments."""
    found = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in found if line.startswith(f"{program} ")]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (block,) = blocks("python")
    assert len([line for line in block.splitlines() if line and "import" not in line]) <= 10
    namespace: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), namespace)
    right = namespace["predicted"] == namespace["data"].test_y
    assert right.float().mean() > 0.8


def test_commands_run(tmp_path: Path) -> None:
    assert len(lines("dualcba")) == 4
    for line in lines("dualcba"):
        code = f"import sys; sys.argv = {line.split()!r}; from dualcba.cli.app import main; main()"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert len(list(tmp_path.glob("runs/readme/*/result.json"))) == 6
    assert list(tmp_path.glob("runs/readme/*.html"))


def test_every_shell_line_is_known() -> None:
    shell = [line for block in blocks("sh") for line in block.splitlines() if line]
    assert len(shell) == sum(len(lines(program)) for program in ("dualcba", "pip", "make"))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [line.split()[1] for line in lines("make")] == ["demo", "test"]
    for line in lines("make"):
        assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE)
    assert f"pip install dualcba-{dualcba.__version__}-py3-none-any.whl" in lines("pip")


def test_sections_are_in_the_order_of_a_first_reading() -> None:
    sections = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert sections == [
        "Install", "Example", "Which method?", "Command line", "Results", "Documentation",
        "Citation",
    ]  # fmt: skip
    assert README.index("![") < README.index("## Install")
    assert len(README.splitlines()) < 150


def test_results_that_the_readme_quotes_exist() -> None:
    named = re.findall(r"`(results/[\w.-]+)`", README)
    assert named
    for path in named:
        assert (ROOT / path).is_file()
