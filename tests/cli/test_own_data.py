"""`dualcba run` on a folder or a file of one's own, with the default network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import load_dataset
from dualcba.experiments import fitting_network as module
from dualcba.experiments.fitting_network import fitting_network

SHORT = ("--method", "er", "--tasks", 2, "--batch-size", 10, "--eval-every", 0, "--device", "cpu")


def save(path: Path, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (80, 28, 28)).astype(dtype)
    np.savez(path, x=x, y=np.repeat([0, 10, 20, 30], 20))


def test_floats_without_channels_run_with_the_defaults(dualcba: Any, tmp_path: Path) -> None:
    save(tmp_path / "own.npz", np.float32)
    done = dualcba(
        "run", "--dataset", tmp_path / "own.npz", *SHORT, "--json", "--out", tmp_path / "out"
    )
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)
    assert result["spec"]["network"] == "mlp"
    assert "the network is mlp: samples have the shape (28, 28)" in done.err


def test_many_pixels_on_a_cpu_get_an_mlp_unless_a_network_is_given(
    dualcba: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "own.npz", np.uint8)
    monkeypatch.setattr(module, "CPU_PIXELS", 50_000)
    args = ("run", "--dataset", tmp_path / "own.npz", *SHORT, "--json", "--out")
    found = []
    for name, network in {"a": (), "b": ("--network", "mlp")}.items():
        done = dualcba(*args, tmp_path / name, *network)
        assert done.code == 0, done.err
        found.append(json.loads(done.out)[0]["spec"]["network"])
        assert ("the network is mlp: 50176 pixels" in done.err) == (not network)
    assert found == ["mlp", "mlp"]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_recipe_fits_samples_without_colour(dualcba: Any, tmp_path: Path, dtype: Any) -> None:
    save(tmp_path / "own.npz", dtype)
    args = ("run", "--dataset", tmp_path / "own.npz", *SHORT[2:], "--network", "mlp", "--json")
    done = dualcba(*args, "--method", "best,er", "--out", tmp_path / "a")
    assert done.code == 0, done.err
    for result in json.loads(done.out):
        assert result["spec"]["augmentation"] == "partial"
        assert result["spec"]["test_flip"] is False
    has = "augmentation = partial, test_flip = False"
    why = f"the samples are not colour images, so best uses {has}"
    assert why in done.err
    done = dualcba(*args, "--method", "best", "--augmentation", "none", "--out", tmp_path / "b")
    assert json.loads(done.out)[0]["spec"]["augmentation"] == "none"
    assert "so best uses test_flip = False" in done.err
    done = dualcba(*args, "--method", "er", "--out", tmp_path / "c")
    assert "so " not in done.err


def test_the_rule() -> None:
    digits, cpu, gpu = load_dataset("digits"), torch.device("cpu"), torch.device("cuda")
    large = replace(digits, train_x=torch.zeros(1, 1, 1, 1).expand(2_001, 3, 40, 25))
    assert fitting_network(large, cpu)[0] == "mlp"
    assert fitting_network(large, gpu)[0] == "resnet18-slim"
    assert fitting_network(replace(large, train_x=large.train_x[1:]), cpu)[0] == "resnet18-slim"
    vectors = replace(digits, train_x=digits.train_x.flatten(1))
    assert fitting_network(vectors, gpu)[0] == "mlp"
