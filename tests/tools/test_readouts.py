"""The script that scores one learner by all read-outs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools import readouts, variants

TABLE = """
[defaults]
eval_every = 0
batch_size = 32

[streams.small]
dataset = "digits"
buffer = 40

[variants.plain]
test_flip = true

[variants.again]
test_flip = true

[variants.wild]
lr = 1e30
"""

READ_OUTS = ("head", "ncm", "both", "lda", "both-lda", "debiased")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Call the script and `tools.variants` for each read-out; returns what they found."""
    (tmp_path / "table.toml").write_text(TABLE)
    given = ["--file", str(tmp_path / "table.toml"), "--device", "cpu", "--base", "er"]
    given += ["--seeds", "1", "--commit", "abc", "--only", "plain"]
    out, features = tmp_path / "out.json", tmp_path / "features"
    readouts.main([str(out), "--features", str(features), *given])
    readouts.main([str(out), *given])  # finds its run
    found = {}
    for name in READ_OUTS:
        path = tmp_path / f"{name}.json"
        variants.main([str(path), *given, "--set", f"readout={name}"])
        found[name] = json.loads(path.read_text())["runs"][0]["scores"]
    return {"all": json.loads(out.read_text()), "each": found, "features": features}


def test_each_accuracy_is_that_of_a_run_with_the_read_out(files: dict[str, Any]) -> None:
    (run,) = files["all"]["runs"]
    assert (run["variant"], run["seed"], run["commit"]) == ("plain", 0, "abc")
    assert files["all"]["commands"][0].startswith("python -m tools.readouts")
    for name, scores in files["each"].items():
        for statistics in ("bn", "ibn"):
            got = run["accuracy"][f"{statistics}|{name}+flip"]
            # tasks of digits have nearly equal sizes, and ACC is the mean over tasks
            assert got == pytest.approx(scores[statistics]["acc"], abs=1.5), (name, statistics)
    assert run["accuracy"]["ibn|head"] != run["accuracy"]["ibn|lda"]
    kept = sorted(files["features"].glob("*.npz"))
    assert [path.stem.rpartition("-")[2] for path in kept] == ["flip", "raw"]
    arrays = np.load(kept[1])
    assert arrays["h"].shape[0] == arrays["z"].shape[0] == len(arrays["y"])
    assert len(arrays["h_memory"]) == len(arrays["y_memory"]) == 40


def test_equal_variants_and_a_run_that_fails(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    out = tmp_path / "out.json"
    given = ["--file", str(tmp_path / "table.toml"), "--device", "cpu", "--base", "er"]
    assert readouts.main([str(out), *given, "--seeds", "1"]) == 1
    content = json.loads(out.read_text())
    assert [run["variant"] for run in content["runs"]] == ["plain", "again"]
    assert content["runs"][0]["accuracy"] == content["runs"][1]["accuracy"]
    assert [run["variant"] for run in content["failed"]] == ["wild"]
    assert "failed: wild, small, er, seed 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: unknown variant 'wlid', did you mean 'wild'"):
        readouts.main([str(out), *given, "--only", "wlid"])
