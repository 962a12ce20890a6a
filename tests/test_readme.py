"""The README is executed: its Python blocks, and those of its commands that need no download."""

import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        namespace: dict[str, object] = {}
        exec(compile(block, "README.md", "exec"), namespace)
        answers, data = torch.as_tensor(namespace["answers"]), namespace["data"]
        assert (answers == data.test_y).float().mean() > 0.5


def test_commands_run(tmp_path):
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    for line in lines:
        assert line.startswith("dualcba ")
        code = f"import sys; sys.argv = {line.split()!r}; from dualcba.cli.app import main; main()"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert len(list(tmp_path.glob("runs/readme/*/result.json"))) == 6


def test_results_that_the_readme_quotes_exist():
    for path in re.findall(r"`(results/[\w.-]+)`", README):
        assert (ROOT / path).is_file()
