"""Folders of images, intact and damaged; datasets by name or path."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dualcba.data import data_dir, load_dataset
from dualcba.data.dataset import mean_and_std
from dualcba.data.readers import decoding
from dualcba.data.readers.decoding import map_blocks
from dualcba.data.readers.folder import channel_mean_and_std, from_folder
from dualcba.data.readers.holdout import hold_out
from dualcba.data.readers.images import _header, read_image


def picture(value: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Image.Image:
    """An image of random pixels, of size (width, height)."""
    pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def fill(root: Path, counts: dict[str, int], first: int = 0, **how: Any) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for k in range(count):
            picture(first + k, **how).save(root / name / f"{k:03}.png")
        first += count
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "pets"


# ── Layouts ───────────────────────────────────────────────────────────────────────────────────


def test_one_root(root: Path) -> None:
    fill(root, {"dog": 10, "cat": 5, "eel": 20})
    data = load_dataset(root)
    assert torch.bincount(data.train_y).tolist() == [4, 8, 16]
    assert torch.bincount(data.test_y).tolist() == [1, 2, 4]
    assert (data.name, data.num_classes, data.input_shape) == ("pets", 3, (3, 6, 8))
    assert data.train_x.dtype == torch.uint8
    cats = {np.asarray(picture(10 + k)).transpose(2, 0, 1).tobytes() for k in range(5)}
    found = [x.numpy().tobytes() for x in data.train_x[data.train_y == 0]]
    found += [x.numpy().tobytes() for x in data.test_x[data.test_y == 0]]
    assert set(found) == cats


def test_the_seed_decides_the_held_out_part(root: Path) -> None:
    fill(root, {"a": 20, "b": 20})
    one, two, three = (from_folder(root, holdout=0.25, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.test_x, two.test_x)
    assert not torch.equal(one.test_x, three.test_x)
    assert len(one.test_x) == 10


def test_classes_do_not_hold_out_the_same_places() -> None:
    _, held = hold_out(np.repeat([0, 1], 20), 0.3, seed=0)
    assert held[:6].tolist() != (held[6:] - 20).tolist()


def test_each_part_keeps_a_sample() -> None:
    assert [len(part) for part in hold_out(np.zeros(2, np.int64), 0.9, seed=0)] == [1, 1]


def test_a_new_class_does_not_change_the_split_of_others(root: Path) -> None:
    fill(root, {"a": 20, "b": 20})
    before = from_folder(root)
    fill(root, {"c": 20}, first=40)
    after = from_folder(root)
    assert torch.equal(before.test_x, after.test_x[after.test_y < 2])


@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test(root: Path, test: str) -> None:
    fill(root / "train", {"b": 3, "a": 4})
    fill(root / test, {"a": 2, "b": 1}, first=50)
    data = load_dataset(root)
    assert data.train_y.tolist() == [0] * 4 + [1] * 3
    assert data.test_y.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(data.test_x[0].permute(1, 2, 0), picture(50))


def test_a_val_folder_beside_a_test_folder_is_ignored(root: Path) -> None:
    for part, count in (("train", 4), ("test", 2), ("val", 3)):
        fill(root / part, {"a": count})
    assert len(from_folder(root).test_x) == 2


def test_train_alone_has_a_part_held_out(root: Path) -> None:
    fill(root / "train", {"a": 5, "b": 5})
    assert len(load_dataset(root).test_x) == 2


def test_a_class_may_be_called_train(root: Path) -> None:
    fill(root, {"train": 5, "tram": 5})
    data = load_dataset(root)
    assert data.num_classes == 2


def test_hidden_and_other_files_are_ignored(root: Path) -> None:
    fill(root, {"a": 5, "b": 5, ".git": 1, "__MACOSX": 1})
    (root / "README.txt").touch()
    (root / "a" / ".DS_Store").touch()
    (root / "a" / "Thumbs.db").touch()
    data = load_dataset(root)
    assert (data.num_classes, len(data.train_x) + len(data.test_x)) == (2, 10)


def test_folders_inside_a_class_belong_to_it(root: Path) -> None:
    fill(root, {"a/x": 3, "a/y": 3, "b": 4})
    assert torch.bincount(load_dataset(root).train_y).tolist() == [5, 3]


# ── Images ────────────────────────────────────────────────────────────────────────────────────


def test_the_most_common_size(root: Path) -> None:
    fill(root, {"a": 5, "b": 2})
    fill(root, {"c": 4}, size=(20, 30))
    data = load_dataset(root)
    assert data.input_shape == (3, 6, 8)
    assert (data.pad, data.flip) == (0, True)


def test_the_smaller_of_equally_common_sizes(root: Path) -> None:
    fill(root, {"a": 2}, size=(9, 7))
    fill(root, {"b": 2}, size=(8, 6))
    assert from_folder(root).input_shape == (3, 6, 8)


@pytest.mark.parametrize(
    ("size", "shape", "pad"), [(16, (3, 16, 16), 2), ([64, 80], (3, 64, 80), 4)]
)
def test_a_given_size(root: Path, size: Any, shape: tuple[int, ...], pad: int) -> None:
    fill(root, {"a": 3, "b": 3})
    data = load_dataset(root, size=size)
    assert data.input_shape == shape
    assert data.pad == pad


def test_fitting_keeps_the_proportions(tmp_path: Path) -> None:
    """A vertical bar at the centre keeps its width when the sides are cropped."""
    wide = np.zeros((30, 90, 3), np.uint8)
    wide[:, 40:50] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    out = read_image(tmp_path / "wide.png", (3, 30, 30))
    assert (out[0, 0] > 127).sum() == 10


@pytest.mark.parametrize("size", [0, -1, True, 3.5, "16", [8], [8, 8, 8], [8, 0], [8.0, 8]])
def test_an_impossible_size(root: Path, size: Any) -> None:
    fill(root, {"a": 2, "b": 2})
    with pytest.raises(ValueError, match=r"size is .* expected a number of pixels"):
        load_dataset(root, size=size)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16"])
def test_grey_images_have_one_channel(root: Path, mode: str) -> None:
    for name in "ab":
        (root / name).mkdir(parents=True)
        for k in range(3):
            grey = picture(k, mode="L")
            image = (
                Image.fromarray(np.asarray(grey).astype(np.uint16) << 8)
                if mode == "I;16"
                else grey.convert(mode)
            )
            image.save(root / name / f"{k}.png")
    data = load_dataset(root, holdout=0.5)
    assert data.input_shape == (1, 6, 8)
    assert len(data.mean) == 1
    if mode != "1":
        np.testing.assert_array_equal(data.train_x[0, 0], picture_of(root, data.train_x[0, 0]))


def picture_of(root: Path, x: torch.Tensor) -> np.ndarray:
    """Return the picture that is nearest to x."""
    drawn = [np.asarray(picture(k, mode="L")) for k in range(3)]
    return min(drawn, key=lambda d: float(np.abs(d.astype(int) - x.numpy()).sum()))


def test_grey_among_colours_becomes_colours(root: Path) -> None:
    fill(root, {"a": 3}, mode="L")
    fill(root, {"b": 3})
    data = load_dataset(root)
    assert data.input_shape == (3, 6, 8)
    grey = data.train_x[data.train_y == 0]
    assert torch.equal(grey[:, 0], grey[:, 1])


@pytest.mark.parametrize("kind", ["RGBA", "P", "LA", "RGB"])
def test_what_is_transparent_becomes_white(tmp_path: Path, kind: str) -> None:
    image = Image.new(kind if kind != "P" else "P", (4, 4), 0)
    path = tmp_path / "clear.png"
    image.save(path, **({"transparency": 0} if kind == "P" else {}))
    if kind == "RGB":
        image.save(path, transparency=(0, 0, 0))
    assert read_image(path, (3, 4, 4)).min() == 255


def test_half_transparent(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (200, 100, 0, 128)).save(tmp_path / "half.png")
    assert abs(read_image(tmp_path / "half.png").astype(int)[:, 0, 0] - [227, 177, 127]).max() <= 1


def test_palettes_become_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (250, 10, 20)).convert("P", palette=Image.Palette.ADAPTIVE)
    red.save(tmp_path / "red.png")
    assert read_image(tmp_path / "red.png")[:, 1, 1].tolist() == [250, 10, 20]


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "jpg", "webp", "tif", "ppm"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (6, 4), (200, 200, 200)).save(tmp_path / f"x.{suffix}")
    out = read_image(tmp_path / f"x.{suffix}", (3, 4, 6))
    assert out.shape == (3, 4, 6)
    assert abs(out.astype(int) - 200).max() <= 1


@pytest.mark.parametrize("suffix", ["jpg", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    """As Pillow's own function turns them."""
    from PIL import ImageOps

    image, path = picture(1, (16, 8)), tmp_path / f"photo.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif)
    with Image.open(path) as saved:
        height, width, _ = _header(saved)
        upright = ImageOps.exif_transpose(saved)
        assert (width, height) == upright.size
        np.testing.assert_array_equal(read_image(path).transpose(1, 2, 0), np.asarray(upright))


def test_damaged_exif_data_do_not_matter(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "x.jpg", exif=b"Exif\0\0nonsense")
    assert read_image(tmp_path / "x.jpg").shape == (3, 6, 8)


def test_statistics_are_those_of_the_training_images(root: Path) -> None:
    fill(root, {"a": 150, "b": 150})
    data = load_dataset(root)
    mean, std = mean_and_std(data.train_x)
    np.testing.assert_allclose(data.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(data.std, std, rtol=1e-12)
    assert channel_mean_and_std(np.zeros((2, 1, 2, 2), np.uint8)) == ([0.0], [1e-6])


def test_given_statistics_and_augmentation(root: Path) -> None:
    fill(root, {"a": 3, "b": 3})
    options = {"mean": [0.1] * 3, "std": [0.2] * 3, "pad": 3, "flip": False, "name": "mine"}
    data = load_dataset(root, **options)
    assert {k: getattr(data, k) for k in options} == options


# ── Damage ────────────────────────────────────────────────────────────────────────────────────


def not_an_image(path: Path) -> None:
    path.write_text("not an image")


def truncated(path: Path) -> None:
    picture(0, (64, 64)).save(path)
    path.write_bytes(path.read_bytes()[:3000])


def empty(path: Path) -> None:
    path.touch()


def header_alone(path: Path) -> None:
    picture(0).save(path)
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize("damage", [not_an_image, truncated, empty, header_alone])
@pytest.mark.parametrize("options", [{}, {"size": 8}])
def test_a_file_that_is_not_an_image(
    root: Path, damage: Callable[[Path], None], options: dict[str, Any]
) -> None:
    fill(root, {"a": 4, "b": 4})
    damage(root / "b" / "bad.png")
    with pytest.raises(ValueError, match="cannot be read as an image") as caught:
        load_dataset(root, **options)
    assert str(root / "b" / "bad.png") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_image_too_large_to_be_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 2, "b": 2}, size=(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="cannot be read as an image: Image size"):
        load_dataset(root)


def test_a_file_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 2, "b": 2})

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(PermissionError, match=r"000\.png"):
        load_dataset(root)


def test_a_missing_root(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pets is missing"):
        from_folder(root)


def test_a_root_without_folders(root: Path) -> None:
    root.mkdir()
    picture(0).save(root / "x.png")
    with pytest.raises(ValueError, match="pets holds no folders, expected one folder"):
        load_dataset(root)


@pytest.mark.parametrize("inside", [None, ".hidden", "sub/"])
def test_an_empty_class(root: Path, inside: str | None) -> None:
    fill(root, {"a": 2, "b": 2})
    (root / "c" / (inside or "")).mkdir(parents=True)
    with pytest.raises(ValueError, match="c is empty, expected the images of that class"):
        load_dataset(root)


def test_a_class_without_a_test_folder(root: Path) -> None:
    fill(root / "train", {"a": 2, "b": 2})
    fill(root / "test", {"a": 2})
    with pytest.raises(FileNotFoundError, match="test/b is missing, expected a folder of that cl"):
        load_dataset(root)


def test_a_class_without_a_training_folder(root: Path) -> None:
    fill(root / "train", {"a": 2})
    fill(root / "test", {"a": 2, "b": 2})
    with pytest.raises(ValueError, match="test/b is of a class without training images"):
        load_dataset(root)


def test_a_class_of_one_image(root: Path) -> None:
    fill(root, {"a": 2, "b": 1})
    with pytest.raises(ValueError, match="class 'b' has one sample, expected at least two, or"):
        load_dataset(root)


# ── In parallel, and on disk ──────────────────────────────────────────────────────────────────


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and workers for few images."""
    monkeypatch.setattr(decoding, "BLOCK", 4)
    monkeypatch.setattr(decoding, "MIN_PARALLEL", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


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


@pytest.fixture
def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each call that decodes some."""
    decoded: list[int] = []
    original = decoding._decode

    def decode(paths: Any, shape: Any) -> Any:
        decoded.append(len(paths))
        return original(paths, shape)

    monkeypatch.setattr(decoding, "_decode", decode)
    return decoded


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


# ── By name or path ───────────────────────────────────────────────────────────────────────────


def test_a_name_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "digits", {"a": 3, "b": 3})
    fill(tmp_path / "pets", {"a": 3, "b": 3})
    monkeypatch.chdir(tmp_path)
    assert load_dataset("digits").num_classes == 10
    assert load_dataset("./digits").num_classes == 2
    assert load_dataset("pets").num_classes == 2


def test_the_home_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 3, "b": 3})
    monkeypatch.setenv("HOME", str(root.parent))
    assert load_dataset("~/pets").num_classes == 2


@pytest.mark.parametrize(
    ("name", "kind", "line"),
    [
        ("digit", ValueError, "unknown dataset 'digit', did you mean 'digits'"),
        ("", ValueError, "holds no folders"),
        ("no/such/place", FileNotFoundError, "no/such/place is missing"),
        ("./nothing", FileNotFoundError, "nothing is missing"),
        ("nothing.npz", FileNotFoundError, "nothing.npz is missing"),
        ("a.txt", ValueError, "a.txt is a file, expected a folder of images by class"),
    ],
)
def test_missing_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(kind, match=line):
        load_dataset(name)


def test_options_that_a_dataset_does_not_take(root: Path) -> None:
    fill(root, {"a": 3, "b": 3})
    with pytest.raises(ValueError, match="digits takes no option size, expected one of: none"):
        load_dataset("digits", size=3)
    with pytest.raises(ValueError, match="takes no option sise, expected one of: size, holdout"):
        load_dataset(root, sise=3)


def test_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUALCBA_DATA", raising=False)
    assert data_dir() == Path("data")
    monkeypatch.setenv("DUALCBA_DATA", "elsewhere")
    assert data_dir() == Path("elsewhere")
    assert data_dir("here") == Path("here")


def test_files_are_not_changed(root: Path) -> None:
    fill(root, {"a": 3, "b": 3})
    copy = shutil.copytree(root, root.parent / "copy")
    load_dataset(root)
    assert [p.read_bytes() for p in sorted(root.rglob("*.png"))] == [
        p.read_bytes() for p in sorted(copy.rglob("*.png"))
    ]
