"""Folders of images, intact and damaged."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_helpers import fill, picture, truncated
from PIL import Image

from dualcba.data import load_dataset
from dualcba.data.dataset import mean_and_std
from dualcba.data.readers.folder import channel_mean_and_std, from_folder
from dualcba.data.readers.holdout import hold_out


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
    (root / "a" / "notes.txt").write_text("not an image")
    (root / "b" / "labels.json").write_text("{}")
    data = load_dataset(root)
    assert data.class_names == ("a", "b")
    assert (data.num_classes, len(data.train_x) + len(data.test_x)) == (2, 10)


def test_an_image_with_another_suffix_is_one(root: Path) -> None:
    fill(root, {"a": 5, "b": 5})
    (root / "a" / "000.png").rename(root / "a" / "000.0001")
    (root / "b" / "000.png").rename(root / "b" / "000")
    data = load_dataset(root)
    assert len(data.train_x) + len(data.test_x) == 10


def test_a_text_beside_the_classes_does_not_make_train_a_class(root: Path) -> None:
    fill(root, {"train/a": 5, "train/b": 5})
    (root / "train" / "README.txt").write_text("about the images")
    assert load_dataset(root).num_classes == 2


def test_folders_inside_a_class_belong_to_it(root: Path) -> None:
    fill(root, {"a/x": 3, "a/y": 3, "b": 4})
    assert torch.bincount(load_dataset(root).train_y).tolist() == [5, 3]


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


def not_an_image(path: Path) -> None:
    path.write_text("not an image")


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


def test_files_are_not_changed(root: Path) -> None:
    fill(root, {"a": 3, "b": 3})
    copy = shutil.copytree(root, root.parent / "copy")
    load_dataset(root)
    assert [p.read_bytes() for p in sorted(root.rglob("*.png"))] == [
        p.read_bytes() for p in sorted(copy.rglob("*.png"))
    ]
