"""Images decoded by several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from image_helpers import fill, truncated

from dualcba.data import load_dataset
from dualcba.data.readers import decoding
from dualcba.data.readers.decoding import map_blocks


def test_workers_change_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 21, "b": 22})
    alone = load_dataset(root)
    for name, value in (("BLOCK", 4), ("MIN_PARALLEL", 1)):
        monkeypatch.setattr(decoding, name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    state = torch.random.get_rng_state()
    together = load_dataset(root)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(alone.train_x, together.train_x)
    assert torch.equal(alone.test_x, together.test_x)


def test_other_processes_do_the_work(parallel: None) -> None:
    def work(paths: Any) -> int:
        return os.getpid()

    pids = [*map_blocks(work, [Path(str(k)) for k in range(40)], "", False)]
    assert len(pids) == 10
    assert os.getpid() not in pids
    assert len(set(pids)) == 3


def test_workers_name_a_bad_file(root: Path, parallel: None) -> None:
    fill(root, {"a": 20, "b": 20})
    truncated(root / "b" / "bad.png")
    with pytest.raises(ValueError, match=r"b/bad\.png cannot be read as an image") as caught:
        load_dataset(root)
    assert "\n" not in str(caught.value)


def test_workers_end_at_once_on_an_error(root: Path, parallel: None) -> None:
    def work(paths: Any) -> int:
        raise ValueError("bad")

    before = time.monotonic()
    with pytest.raises(ValueError, match="bad"):
        list(map_blocks(work, [Path(str(k)) for k in range(400)], "", False))
    gc.collect()
    assert not multiprocessing.active_children()
    assert time.monotonic() - before < 4


def test_progress_shows_throughput(
    root: Path, parallel: None, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(root, {"a": 20, "b": 20})
    load_dataset(root, show=True)
    assert "images/s" in capfd.readouterr().err
    load_dataset(root, show=False)
    assert capfd.readouterr() == ("", "")


def test_more_than_the_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 4, "b": 4})
    monkeypatch.setattr(decoding, "_total_memory", lambda: 1000)
    with pytest.raises(
        ValueError, match=r"8 images of 6×8 take .* give a smaller size, or a cache"
    ):
        load_dataset(root)
    assert load_dataset(root, cache=root.parent / "cache").input_shape == (3, 6, 8)
