"""Tiny-ImageNet in the official layout, with few images, intact and damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dualcba.data import load_dataset
from dualcba.data.download.fetch import check, label_digest
from dualcba.data.download.published import EXPECTED_CONTENTS, ExpectedContents

WNIDS = ["n02124075", "n01443537", "n04067472"]  # not sorted, as in the archive
TRAIN, VAL = 5, 2


def image(value: int, *, grey: bool = False) -> Image.Image:
    """An image of one colour, which JPEG changes by at most two levels."""
    colour = Image.new("RGB", (64, 64), (value, 255 - value, 40))
    return colour.convert("L") if grey else colour


def value(label: int, k: int) -> int:
    return 40 * label + 5 * k


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes; the first training image of each is grey."""
    folder = tmp_path / "tiny-imagenet-200"
    names = WNIDS
    lines = []
    for label, wnid in enumerate(names):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
        for k in range(TRAIN):
            image(value(label, k), grey=k == 0).save(images / f"{wnid}_{k}.JPEG", quality=95)
    (folder / "val" / "images").mkdir(parents=True)
    for k in range(VAL * len(names)):
        label = k % len(names)
        image(value(label, 9)).save(folder / "val" / "images" / f"val_{k}.JPEG", quality=95)
        lines.append(f"val_{k}.JPEG\t{names[label]}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("".join(f"{wnid}\ta thing\n" for wnid in WNIDS))
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Path:
    return root / "tiny-imagenet-200"


def load(root: Path) -> Any:
    return load_dataset("tiny-imagenet", root)


def test_classes_in_the_order_of_wnids(root: Path) -> None:
    data = load(root)
    assert data.train_y.tolist() == [0] * TRAIN + [1] * TRAIN + [2] * TRAIN
    assert data.test_y.tolist() == [0, 1, 2] * VAL
    assert data.train_x.shape == (15, 3, 64, 64)
    assert data.train_x.dtype == torch.uint8
    for label in range(3):
        red = data.test_x[data.test_y == label][:, 0].float()
        assert (red - value(label, 9)).abs().max() <= 3
        red = data.train_x[data.train_y == label][1:, 0].float().mean((1, 2))
        assert (red - torch.tensor([value(label, k) for k in range(1, TRAIN)])).abs().max() <= 3


def test_grey_images_become_colours(root: Path) -> None:
    grey = load(root).train_x[0]
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])


def test_the_protocols_numbers(root: Path) -> None:
    data = load(root)
    assert [*data.mean, *data.std] == [0.4802, 0.4480, 0.3975, 0.2770, 0.2691, 0.2821]
    assert (data.pad, data.flip, data.name, data.num_classes) == (4, True, "tiny-imagenet", 3)


def test_decoded_once_into_a_cache(root: Path, count_decodes: list[int]) -> None:
    first = load(root)
    second = load(root)
    assert sum(count_decodes) == 21
    assert torch.equal(first.train_x, second.train_x)
    cache = root / "tiny-imagenet-200-cache"
    about = json.loads((cache / "cache.json").read_text())
    assert about["version"] == 1
    assert about["count"] == {"train": 15, "test": 6}
    assert about["classes"] == WNIDS
    mapped = np.load(cache / "train_x.npy", mmap_mode="r")
    assert (mapped.shape, mapped.dtype) == ((15, 3, 64, 64), np.uint8)
    np.testing.assert_array_equal(mapped, first.train_x)


def test_the_cache_is_enough(root: Path, folder: Path) -> None:
    before = load(root).train_x.clone()
    shutil.rmtree(folder)
    data = load(root)
    assert torch.equal(data.train_x, before)
    assert data.num_classes == 3


def test_the_cache_is_mapped_not_read(root: Path, recwarn: pytest.WarningsRecorder) -> None:
    load(root)
    data = load(root)
    start = data.train_x.data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = {tuple(int(n, 16) for n in m[0].split("-")): m[-1] for m in maps if len(m) > 5}
    (file,) = [name for (low, high), name in spans.items() if low <= start < high]
    assert file.endswith("tiny-imagenet-200-cache/train_x.npy")
    assert not recwarn.list


def test_other_classes_make_another_cache(
    root: Path, folder: Path, count_decodes: list[int]
) -> None:
    load(root)
    gone, *kept = WNIDS
    (folder / "wnids.txt").write_text("\n".join(kept))
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    left = [line for line in lines if gone not in line]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(left))
    assert load(root).num_classes == 2
    assert sum(count_decodes) == 21 + 14


def make_sorted_cache(root: Path) -> None:
    """Change the cache to that of an earlier version, whose labels follow the sorted names."""
    load(root)
    cache = root / "tiny-imagenet-200-cache"
    about = json.loads((cache / "cache.json").read_text())
    del about["order"]
    (cache / "cache.json").write_text(json.dumps(about | {"classes": sorted(WNIDS)}))
    rank = np.array([sorted(WNIDS).index(name) for name in WNIDS])
    for part in ("train", "test"):
        np.save(cache / f"{part}_y.npy", rank[np.load(cache / f"{part}_y.npy")])


def test_a_cache_of_sorted_classes_is_made_anew(root: Path, count_decodes: list[int]) -> None:
    make_sorted_cache(root)
    assert load(root).test_y.tolist() == [0, 1, 2] * VAL
    assert sum(count_decodes) == 2 * 21


def test_a_cache_of_sorted_classes_alone_is_refused(root: Path, folder: Path) -> None:
    make_sorted_cache(root)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match=r"wnids\.txt is missing"):
        load(root)


def test_a_damaged_cache_is_made_anew(root: Path) -> None:
    before = load(root).train_x.clone()
    path = root / "tiny-imagenet-200-cache" / "train_x.npy"
    path.write_bytes(path.read_bytes()[:1000])
    assert torch.equal(load(root).train_x, before)


def test_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="number of training samples of tiny-imagenet is 15"):
        check("tiny-imagenet", root)
    contents = ExpectedContents(15, 6, (3, 64, 64), 3, balanced=True)
    monkeypatch.setitem(EXPECTED_CONTENTS, "tiny-imagenet", contents)
    assert check("tiny-imagenet", root).train_per_class == (5, 5)


def test_check_compares_the_labels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = label_digest(load(root))
    contents = ExpectedContents(15, 6, (3, 64, 64), 3, balanced=True, labels=labels)
    monkeypatch.setitem(EXPECTED_CONTENTS, "tiny-imagenet", contents)
    assert str(check("tiny-imagenet", root)).endswith("as published, by counts and labels")
    wnids = root / "tiny-imagenet-200" / "wnids.txt"
    wnids.write_text("\n".join(sorted(WNIDS)))
    with pytest.raises(ValueError, match="digest of the labels of tiny-imagenet"):
        check("tiny-imagenet", root)


# ── Damage ────────────────────────────────────────────────────────────────────────────────────


def no_wnids(folder: Path) -> None:
    (folder / "wnids.txt").unlink()


def binary_wnids(folder: Path) -> None:
    (folder / "wnids.txt").write_bytes(b"\xff\xfe\x00")


def empty_wnids(folder: Path) -> None:
    (folder / "wnids.txt").write_text("")


def double_wnid(folder: Path) -> None:
    (folder / "wnids.txt").write_text("n1\nn1\n")


def outside_wnid(folder: Path) -> None:
    (folder / "wnids.txt").write_text("../../elsewhere\n")


def no_class_folder(folder: Path) -> None:
    shutil.rmtree(folder / "train" / WNIDS[0])


def no_images(folder: Path) -> None:
    for path in (folder / "train").rglob("*.JPEG"):
        path.unlink()


def one_image_fewer(folder: Path) -> None:
    (folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG").unlink()


def not_an_image(folder: Path) -> None:
    (folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG").write_text("hello")


def cut_image(folder: Path) -> None:
    path = folder / "val" / "images" / "val_3.JPEG"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_annotations(folder: Path) -> None:
    (folder / "val" / "val_annotations.txt").unlink()


def no_test_image(folder: Path) -> None:
    (folder / "val" / "images" / "val_3.JPEG").unlink()


def annotate(folder: Path, line: str) -> None:
    path = folder / "val" / "val_annotations.txt"
    path.write_text(path.read_text() + line)


def strange_line(folder: Path) -> None:
    annotate(folder, "val_9.JPEG\n")


def strange_class(folder: Path) -> None:
    annotate(folder, "val_0.JPEG\tn99999999\t0\t0\t1\t1\n")


def outside_image(folder: Path) -> None:
    annotate(folder, f"../../wnids.txt\t{WNIDS[0]}\t0\t0\t1\t1\n")


def uneven_test(folder: Path) -> None:
    annotate(folder, f"val_0.JPEG\t{WNIDS[0]}\t0\t0\t1\t1\n")


@pytest.mark.parametrize(
    ("damage", "kind", "line"),
    [
        (no_wnids, FileNotFoundError, r"wnids.txt is missing.*`dualcba data fetch tiny-imagenet`"),
        (binary_wnids, ValueError, "wnids.txt is not a text file"),
        (empty_wnids, ValueError, "wnids.txt holds 0 names"),
        (double_wnid, ValueError, "wnids.txt holds 2 names, expected one per class, each once"),
        (outside_wnid, ValueError, "wnids.txt holds 1 names"),
        (no_class_folder, FileNotFoundError, f"train/{WNIDS[0]}/images is missing"),
        (no_images, ValueError, "train has 0 images of class n02124075, expected at least 1"),
        (one_image_fewer, ValueError, f"train has 4 images of class {WNIDS[0]}, expected 5 as"),
        (not_an_image, ValueError, f"{WNIDS[0]}_3.JPEG cannot be read as an image"),
        (cut_image, ValueError, "val_3.JPEG cannot be read as an image"),
        (no_annotations, FileNotFoundError, "val/val_annotations.txt is missing"),
        (no_test_image, FileNotFoundError, "val_3.JPEG is missing, expected an image that"),
        (strange_line, ValueError, "val_annotations.txt, line 7 is 'val_9.JPEG'"),
        (strange_class, ValueError, "val_annotations.txt, line 7 is .*n99999999"),
        (outside_image, ValueError, "val_annotations.txt, line 7 is "),
        (uneven_test, ValueError, "val_annotations.txt has 2 images of class .* expected 3 as"),
    ],
)
def test_damage_is_named(
    root: Path, folder: Path, damage: Callable[[Path], None], kind: Any, line: str
) -> None:
    damage(folder)
    with pytest.raises(kind, match=line) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    assert not (root / "tiny-imagenet-200-cache").exists()
    assert not (root / ".tiny-imagenet-200-cache.writing").exists()
