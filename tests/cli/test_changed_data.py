"""Results know their data: another dataset of the same name is refused, not mixed in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import Result, Spec, write_result

Run = Callable[..., Any]
QUICK = ("--eval-every", 0, "--batch-size", 8, "--device", "cpu", "--network", "mlp")


def make_npz(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (60, 1, 4, 4), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x, y=np.arange(60) % 4)


def make_folder(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k in range(60):
        file = path / f"class{k % 4}" / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4), np.uint8)).save(file)


def interrupted(dualcba: Run, dataset: str, out: Path) -> None:
    """Two runs, of which the second has no result."""
    run = ("run", "--method", "er", "--dataset", dataset, "--seeds", 2, "--tasks", 2)
    assert dualcba(*run, "--out", out, *QUICK).code == 0
    _, second = sorted(out.glob("*/result.json"))
    second.unlink()


def refused(got: Any, *words: str) -> None:
    assert (got.code, got.out) == (2, "")
    assert len(got.err.strip().splitlines()) == 1
    for word in words:
        assert word in got.err


@pytest.mark.parametrize(("name", "make"), [("own.npz", make_npz), ("./own", make_folder)])
def test_resume_refuses_a_dataset_that_was_overwritten(
    dualcba: Run, tmp_path: Path, name: str, make: Callable[[Path, int], None]
) -> None:
    out, path = tmp_path / "out", dualcba("list", "methods").folder / name
    make(path, 0)
    interrupted(dualcba, name, out)
    make(path, 1)
    words = (str(path), "has changed", "digest", "expected", "another --out")
    refused(dualcba("resume", out, "--device", "cpu"), *words)
    assert len(list(out.glob("*/result.json"))) == 1
    make(path, 0)
    assert dualcba("resume", out, "--device", "cpu").code == 0
    assert len(list(out.glob("*/result.json"))) == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_a_dataset_of_the_same_name_in_another_place_is_refused(
    dualcba: Run, tmp_path: Path, seed: int
) -> None:
    """Even if its content is the same: then it may differ tomorrow."""
    out, link = tmp_path / "out", dualcba("list", "methods").folder / "data"
    make_npz(tmp_path / "one" / "own.npz", 0)
    make_npz(tmp_path / "two" / "own.npz", seed)
    link.symlink_to(tmp_path / "one")
    interrupted(dualcba, "data/own.npz", out)
    link.unlink()
    link.symlink_to(tmp_path / "two")
    words = ("one/own.npz", "two/own.npz", "has changed", "another --out")
    refused(dualcba("resume", out, "--device", "cpu"), *words)
    run = ("run", "--method", "er", "--dataset", "data/own.npz", "--seed", 7, "--tasks", 2)
    refused(dualcba(*run, "--out", out, *QUICK), *words)
    assert len(list(out.glob("*/result.json"))) == 1


def test_plan_and_result_name_the_data(dualcba: Run, tmp_path: Path) -> None:
    out, path = tmp_path / "out", dualcba("list", "methods").folder / "own.npz"
    make_npz(path, 0)
    interrupted(dualcba, "own.npz", out)
    (result,) = out.glob("*/result.json")
    data = json.loads(result.read_text())["data"]
    assert (data["name"], data["path"], len(data["digest"])) == ("own", str(path), 64)
    plan = json.loads((out / "plan.json").read_text())["specs"]
    assert [entry["data"] for entry in plan] == [data] * 2


def test_results_without_a_digest_are_resumed(dualcba: Run, tmp_path: Path) -> None:
    """Plans and results of earlier versions do not name their data."""
    out, path = tmp_path / "out", dualcba("list", "methods").folder / "own.npz"
    make_npz(path, 0)
    interrupted(dualcba, "own.npz", out)
    (result,) = out.glob("*/result.json")
    for file in (result, out / "plan.json"):
        content = json.loads(file.read_text())
        for entry in (content, *content.get("specs", [])):
            entry.pop("data", None)
        file.write_text(json.dumps(content))
    assert dualcba("resume", out, "--device", "cpu").code == 0
    assert len(list(out.glob("*/result.json"))) == 2


def test_results_of_two_datasets_of_one_name_are_refused(dualcba: Run, tmp_path: Path) -> None:
    out, path = tmp_path / "out", dualcba("list", "methods").folder / "own.npz"
    make_npz(path, 0)
    interrupted(dualcba, "own.npz", out)
    (result,) = out.glob("*/result.json")
    content = json.loads(result.read_text())
    content["data"]["digest"] = "0" * 64
    result.write_text(json.dumps(content))
    refused(dualcba("resume", out, "--device", "cpu"), str(result.parent), "own.npz", "digest")


def test_a_report_does_not_average_over_runs_on_other_data(dualcba: Run) -> None:
    folder = dualcba("list", "methods").folder
    for seed, out in enumerate(("first", "second")):
        make_npz(folder / "own.npz", seed)
        run = ("run", "--method", "er", "--dataset", "own.npz", "--tasks", 2, "--out", out)
        assert dualcba(*run, *QUICK).code == 0
    pages = []
    for outs in (("first", "second"), ("second", "first")):
        assert dualcba("report", *outs, "--out", "page.html").code == 0
        pages.append((folder / "page.html").read_text(encoding="utf-8").split("</header>")[1])
    assert pages[0] == pages[1]
    assert "own.npz, online" not in pages[0]
    for path in folder.glob("*/*/result.json"):
        digest = json.loads(path.read_text())["data"]["digest"]
        assert f"own.npz (digest {digest[:12]}), online" in pages[0]


def test_reproduce_refuses_to_reuse_results_of_other_data(dualcba: Run, tmp_path: Path) -> None:
    spec = Spec(method="er", dataset="digits")
    data = DataOrigin("digits", None, "0" * 64)
    made = Result(spec, 0, {"bn": {"acc": 1.0}}, data=data)
    write_result(tmp_path / "out", spec, made.to_dict())
    args = ("main", "--dataset", "cifar10", "--scale", "small", "--seeds", 1, "--device", "cpu")
    got = dualcba("reproduce", *args, "--out", tmp_path / "out", "--quiet")
    refused(got, "the dataset digits has changed", "digest", "expected digest 000000000000")
