"""The checksum of state files: a file with a single damaged bit is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dualcba import Learner
from dualcba.checkpoint import read_state_file, write_state_file

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]

FULL = os.environ.get("DUALCBA_FUZZ") == "full"
FILES = 3000 if FULL else 150


def old_file(path: Path, state: dict[str, Any]) -> None:
    """Write a file as earlier versions did."""
    tensors = {k: v.contiguous() for k, v in state["tensors"].items()}
    save_file(tensors, path, {"dualcba": json.dumps(state["meta"])})


def test_files_without_a_checksum_still_load(
    make_learner: Make, teach: Teach, differ: Differ, tmp_path: Path
) -> None:
    state = teach(make_learner()).state_dict()
    old_file(tmp_path / "old.safetensors", state)
    learner = make_learner()
    learner.load(tmp_path / "old.safetensors")
    assert differ(state, learner.state_dict()) == []


def test_flipped_bits_in_a_small_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state_file(path, {"tensors": {"t": torch.arange(3.0)}, "meta": {"n": [1, 2.5, "x"]}})
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 1 if FULL else 23):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.safetensors") as caught:
            read_state_file(path)
        assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(
    make_learner: Make, teach: Teach, differ: Differ, tmp_path: Path
) -> None:
    """Flipped bits, cut ends, lost, repeated and cleared parts, at random places."""
    saved = tmp_path / "state.safetensors"
    teach(make_learner()).save(saved)
    content, rng, learner = saved.read_bytes(), np.random.default_rng(0), make_learner()
    before = learner.state_dict()
    for i in range(FILES):
        a, b = sorted(rng.integers(0, len(content), 2).tolist())
        flipped = bytes([content[a] ^ 1 << int(rng.integers(8))])
        damaged = [
            content[:a] + flipped + content[a + 1 :],
            content[:a],
            content[:a] + content[b + 1 :],
            content[:b] + content[a:],
            content[:a] + bytes(b + 1 - a) + content[b + 1 :],
            content + content[a : b + 1],
        ][i % 6]
        if damaged == content:
            continue
        saved.write_bytes(damaged)
        with pytest.raises(ValueError, match=saved.name) as caught:
            learner.load(saved)
        assert "\n" not in str(caught.value)
    assert differ(before, learner.state_dict()) == []


def test_a_damaged_class_agnostic_part_is_refused(
    make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    path = tmp_path / "part.safetensors"
    teach(make_learner()).save_agnostic(path, {"dataset": "images"})
    make_learner(agnostic_from=path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"part\.safetensors is damaged, expected a class-agnostic"
    ):
        make_learner(agnostic_from=path)


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    state = {"tensors": {"b": torch.ones(3), "a": torch.zeros(2, 2)}, "meta": {"é": [1, "x"]}}
    contents = set()
    for _ in range(16):
        write_state_file(tmp_path / "x", state)
        contents.add((tmp_path / "x").read_bytes())
    assert len(contents) == 1
    read = read_state_file(tmp_path / "x")
    assert read["meta"] == state["meta"]
    assert all(torch.equal(read["tensors"][k], t) for k, t in state["tensors"].items())
