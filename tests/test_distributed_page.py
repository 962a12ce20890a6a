"""The example of docs/distributed.md, started by torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from dualcba.checkpoint import read_state_file

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "distributed.md").read_text("utf-8")


def test_the_example_runs_as_the_page_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (line,) = re.findall(r"^    torchrun (.*)$", PAGE, re.MULTILINE)
    (tmp_path / "train.py").write_text(code)
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *line.split()],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"accuracy ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.6
    assert read_state_file(tmp_path / "learner.safetensors")["meta"]["step"] > 30
