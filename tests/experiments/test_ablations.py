"""Every option of the paper's ablations and transfer tables, from the command line to a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualcba import load_dataset
from dualcba.experiments import Hardware, Run, Spec

QUICK = {"eval_every": 0, "batch_size": 20}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The accuracies of ER-Dual-CBA as it is, and its ν."""
    run = Run(Spec(method="er-dual-cba", **QUICK), load_dataset("digits"), Hardware(device="cpu"))
    for _ in run.steps():
        pass
    path = tmp_path_factory.mktemp("nu") / "agnostic.safetensors"
    run.files()[path.name](path)
    return run.result()["accuracy_matrix"], path


@pytest.mark.parametrize(
    "options",
    [
        {"specific": "single"},
        {"specific": "individual"},
        {"specific": "none"},
        {"agnostic": False},
        {"outer_every": 1},
        {"outer_every": 5},
        {"outer_every": 20},
        {"divide": True},
        {"divide": False},
        {"space": "probability"},
        {"width": 64},
        {"width": 1024},
        {"levels": "joint"},
        {"levels": "buffer"},
        {"agnostic_from": "FILE"},
        {"agnostic_from": "FILE", "specific": "individual"},
        {"freeze_after": 2},
    ],
    ids=lambda options: "-".join(f"{k}-{v}" for k, v in options.items()),
)
def test_each_has_a_result_and_an_effect(
    options: dict[str, Any], usual: tuple[dict[str, Any], Path], dualcba: Callable[..., Any]
) -> None:
    accuracies, file = usual
    options = {k: str(file) if v == "FILE" else v for k, v in options.items()}
    words: list[object] = []
    for name, value in (QUICK | options).items():
        option = name.replace("_", "-")
        flag = f"--{option}" if value is not False else f"--no-{option}"
        words += [flag] if isinstance(value, bool) else [flag, value]
    fixed = ("--method", "er-dual-cba", "--device", "cpu", "--out", "x", "--json")
    got = dualcba("run", *fixed, *words)
    assert (got.code, got.err) == (0, "")
    (result,) = json.loads(got.out)
    assert result["status"] == "complete"
    assert {k: result["spec"][k] for k in options} == options
    plain = Spec(method="er-dual-cba", **QUICK)
    by_default = all(getattr(plain, k) == v for k, v in options.items())
    assert (result["accuracy_matrix"] == accuracies) == by_default
