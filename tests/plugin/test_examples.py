"""The examples run, and the page shows what they are."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from dualcba import load_dataset

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LOWEST = 0.8  # the accuracy of ER with this memory is about 0.9, of the newest classes alone 0.2

# torchvision, which Avalanche imports, does not load beside another build of torch: an operator of
# its own is missing there, and nothing here calls it
AVALANCHE = """
import runpy, sys, torch
library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_the_page_shows_the_examples() -> None:
    shown = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/plugin.md").read_text(), re.S | re.M)
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.py"))]
    found = [[block in text for text in texts].index(True) for block in shown]
    assert sorted(found) == list(range(len(texts)))


def test_plain_pytorch() -> None:
    assert runpy.run_path(str(EXAMPLES / "plain_pytorch.py"))["accuracy"] > LOWEST


def test_lightning_and_its_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    example = runpy.run_path(str(EXAMPLES / "lightning_module.py"))

    def fit(epochs: int, checkpoint: Path | None = None) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = example["Continual"](load_dataset("digits"), tasks=5)
        trainer = example["trainer"](epochs, enable_checkpointing=False)
        trainer.fit(model, ckpt_path=checkpoint)
        return trainer, model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, whole = fit(5)
        first, _ = fit(3)
        first.save_checkpoint(tmp_path / "state.ckpt")
        _, resumed = fit(5, tmp_path / "state.ckpt")
    assert example["accuracy"](whole) > LOWEST
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(find_spec("avalanche") is None, reason="needs avalanche-lib")
def test_avalanche() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", AVALANCHE]
    command += [str(EXAMPLES / "avalanche_plugin.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"^accuracy ([\d.]+)%$", done.stdout, re.M)
    assert accuracy is not None
    assert float(accuracy[1]) / 100 > LOWEST
