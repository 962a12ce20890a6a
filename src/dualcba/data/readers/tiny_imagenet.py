"""Tiny-ImageNet in the layout of the official archive, decoded once into memory-mapped arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.readers.decoding import Files, Rows, Shape, on_disk, open_cache

MEAN, STD = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
SHAPE: Shape = (3, 64, 64)
FOLDER = "tiny-imagenet-200"


def tiny_imagenet(root: Path, *, show: bool | None = None) -> Dataset:
    """Tiny-ImageNet from `root/tiny-imagenet-200`; its labelled `val` images are the test set.

    The first call decodes all images into `root/tiny-imagenet-200-cache`, with a progress bar
    where `show` says so; later calls need no more than that folder.
    """
    folder = root / FOLDER
    cache = root / f"{FOLDER}-cache"
    about: dict[str, object] = {"shape": list(SHAPE)}
    if (folder / "wnids.txt").exists():
        about["classes"] = read_wnids(folder)
    arrays = open_cache(cache, about)
    if arrays is None:
        classes = read_wnids(folder)
        parts = {"train": _train(folder, classes), "test": _val(folder, classes)}
        arrays = on_disk(cache, about | {"classes": classes}, parts, SHAPE, show)
    return from_arrays(
        **arrays, num_classes=int(arrays["train_y"][-1]) + 1, mean=MEAN, std=STD,
        pad=4, flip=True, name="tiny-imagenet",
    )  # fmt: skip


def read_wnids(folder: Path) -> list[str]:
    """The sorted WordNet names of the classes: class k is the k-th of them."""
    path = folder / "wnids.txt"
    names = sorted(_text(path).split())
    if not names or len({*names}) < len(names) or any(Path(n).name != n for n in names):
        raise ValueError(f"{path} holds {len(names)} names, expected one per class, each once")
    return names


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected a file of the official archive there")
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from error


def _train(folder: Path, classes: list[str]) -> Files:
    found = []
    for name in classes:
        images = folder / "train" / name / "images"
        if not images.is_dir():
            raise FileNotFoundError(f"{images} is missing, expected the images of that class")
        found.append(sorted(images.glob("*.JPEG")))
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in found])
    _check_counts(labels, classes, folder / "train")
    return Files([path for paths in found for path in paths], labels)


def _check_counts(labels: Rows, classes: list[str], where: Path) -> None:
    """Every class has as many images; fewer somewhere is an archive unpacked in part."""
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    for count, name in zip(counts, classes, strict=True):
        if count == 0 or count != max(counts):
            wanted = f"{max(counts)} as of another class" if max(counts) else "some"
            raise ValueError(f"{where} has {count} images of class {name}, expected {wanted}")


def _val(folder: Path, classes: list[str]) -> Files:
    path = folder / "val" / "val_annotations.txt"
    index = {name: k for k, name in enumerate(classes)}
    paths, labels = [], []
    for number, line in enumerate(_text(path).splitlines(), 1):
        name, wnid, *_ = [*line.split("\t"), "", ""]
        if wnid not in index or Path(name).name != name:
            raise ValueError(f"{path}, line {number} is {line!r}, expected an image and its class")
        paths.append(folder / "val" / "images" / name)
        labels.append(index[wnid])
    for image in paths:
        if not image.is_file():
            raise FileNotFoundError(f"{image} is missing, expected an image that {path} names")
    rows = np.array(labels, np.int64)
    _check_counts(rows, classes, path)
    return Files(paths, rows)
