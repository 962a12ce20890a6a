"""The cache of decoded images."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_helpers import fill, picture, truncated

from dualcba.data import load_dataset


def test_a_cache_is_decoded_once(root: Path, count_decodes: list[int]) -> None:
    fill(root, {"a": 10, "b": 10})
    plain = load_dataset(root)
    count_decodes.clear()
    cache = root.parent / "new" / "cache"
    first = load_dataset(root, cache=cache)
    assert sum(count_decodes) == 20
    second = load_dataset(root, cache=str(cache))
    assert sum(count_decodes) == 20
    for data in (first, second):
        for part in ("train_x", "train_y", "test_x", "test_y"):
            assert torch.equal(getattr(data, part), getattr(plain, part))
    assert sorted(p.name for p in cache.iterdir()) == [
        "cache.json", "test_x.npy", "test_y.npy", "train_x.npy", "train_y.npy",
    ]  # fmt: skip


def test_a_cache_is_mapped_and_cannot_be_spoilt(
    root: Path, recwarn: pytest.WarningsRecorder
) -> None:
    fill(root, {"a": 10, "b": 10})
    cache = root.parent / "cache"
    data = load_dataset(root, cache=cache)
    before = data.train_x.clone()
    data.train_x.zero_()
    assert torch.equal(load_dataset(root, cache=cache).train_x, before)
    assert not recwarn.list


def change_file(root: Path) -> None:
    picture(99).save(root / "a" / "000.png")
    os.utime(root / "a" / "000.png", (1, 1))


def add_file(root: Path) -> None:
    picture(99).save(root / "a" / "999.png")


def rename_class(root: Path) -> None:
    (root / "a").rename(root / "z")


@pytest.mark.parametrize("change", [change_file, add_file, rename_class])
def test_a_cache_follows_the_files(
    root: Path, change: Callable[[Path], None], count_decodes: list[int]
) -> None:
    fill(root, {"a": 6, "b": 6})
    cache = root.parent / "cache"
    load_dataset(root, cache=cache)
    change(root)
    count_decodes.clear()
    cached = load_dataset(root, cache=cache)
    assert count_decodes
    assert torch.equal(cached.train_x, load_dataset(root).train_x)


@pytest.mark.parametrize("options", [{"size": 4}, {"seed": 5}, {"holdout": 0.5}])
def test_a_cache_follows_the_options(root: Path, options: dict[str, Any]) -> None:
    fill(root, {"a": 9, "b": 9})
    cache = root.parent / "cache"
    load_dataset(root, cache=cache)
    cached = load_dataset(root, cache=cache, **options)
    assert torch.equal(cached.train_x, load_dataset(root, **options).train_x)


def cut(cache: Path) -> None:
    path = cache / "train_x.npy"
    path.write_bytes(path.read_bytes()[:-5])


def lose(cache: Path) -> None:
    (cache / "test_y.npy").unlink()


def garble(cache: Path) -> None:
    (cache / "cache.json").write_text("{not json")


def replace(cache: Path) -> None:
    np.save(cache / "train_y.npy", np.zeros(3, np.int64))


def age(cache: Path) -> None:
    about = json.loads((cache / "cache.json").read_text())
    (cache / "cache.json").write_text(json.dumps(about | {"version": 0}))
    np.save(cache / "train_y.npy", np.zeros(10, np.int64))


@pytest.mark.parametrize("damage", [cut, lose, garble, replace, age])
def test_a_damaged_cache_is_made_anew(root: Path, damage: Callable[[Path], None]) -> None:
    fill(root, {"a": 6, "b": 6})
    cache = root.parent / "cache"
    before = load_dataset(root, cache=cache)
    x, y = before.train_x.clone(), before.train_y.clone()
    damage(cache)
    after = load_dataset(root, cache=cache)
    assert torch.equal(after.train_x, x)
    assert torch.equal(after.train_y, y)


def test_a_folder_that_is_no_cache_is_left_alone(root: Path) -> None:
    fill(root, {"a": 6, "b": 6})
    other = root.parent / "precious"
    other.mkdir()
    (other / "thesis.txt").touch()
    with pytest.raises(ValueError, match="precious exists but is not a cache, expected"):
        load_dataset(root, cache=other)
    assert (other / "thesis.txt").exists()


def test_a_failure_leaves_no_half_cache(root: Path) -> None:
    fill(root, {"a": 6, "b": 6})
    truncated(root / "b" / "bad.png")
    with pytest.raises(ValueError, match=r"bad\.png"):
        load_dataset(root, cache=root.parent / "cache")
    left = {p.name for p in root.parent.iterdir()}
    assert left <= {"pets", ".cache.lock"}


def test_a_full_disk_while_the_cache_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, {"a": 6, "b": 6})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match=r"no space left on the disk while writing .*cache"):
        load_dataset(root, cache=root.parent / "cache")
    assert not (root.parent / "cache").exists()


def test_several_make_a_cache_at_once(root: Path, count_decodes: list[int]) -> None:
    fill(root, {"a": 6, "b": 6})
    cache = root.parent / "cache"
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(load_dataset(root, cache=cache)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(count_decodes) == 12
    assert len(found) == 4
