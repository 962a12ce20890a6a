"""Tiny-ImageNet in the layout of the official archive, decoded once into a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualcba.data.dataset import Dataset, IntArray, count_classes, from_arrays
from dualcba.data.readers.cache import decode_to_cache, open_cache
from dualcba.data.readers.decoding import ImageFiles
from dualcba.data.readers.images import ImageShape

MEAN, STD = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
SHAPE: ImageShape = (3, 64, 64)
FOLDER = "tiny-imagenet-200"


def tiny_imagenet(root: Path, *, show: bool | None = None) -> Dataset:
    """Load Tiny-ImageNet from `root/tiny-imagenet-200`; the `val` images are the test set.

    The classes are in the order of `wnids.txt`: label k is its k-th line. In sorted order, similar
    classes would be in the same task.

    The first call decodes all images into `root/tiny-imagenet-200-cache`. Later calls only need
    this cache. `show`: whether to show a progress bar; by default if stderr is a terminal.
    """
    folder = root / FOLDER
    cache = root / f"{FOLDER}-cache"
    # caches without this entry have labels in sorted order
    metadata: dict[str, object] = {"shape": list(SHAPE), "order": "wnids.txt"}
    if (folder / "wnids.txt").exists():
        metadata["classes"] = read_wnids(folder)
    arrays = open_cache(cache, metadata)
    if arrays is None:
        names = read_wnids(folder)
        parts = {"train": _train_files(folder, names), "test": _val_files(folder, names)}
        arrays = decode_to_cache(cache, metadata | {"classes": names}, parts, SHAPE, show)
    labels = arrays["train_y"]
    classes = count_classes(int(labels.max(initial=0)), len(labels))
    return from_arrays(
        **arrays, num_classes=classes, mean=MEAN, std=STD,
        pad=4, flip=True, name="tiny-imagenet",
    )  # fmt: skip


def read_wnids(folder: Path) -> list[str]:
    """Return the WordNet names of the classes in file order; label k is the k-th."""
    path = folder / "wnids.txt"
    names = _read_text(path).split()
    if not names or len({*names}) < len(names) or not all(map(_is_file_name, names)):
        raise ValueError(f"{path} holds {len(names)} names, expected one per class, each once")
    return names


def _is_file_name(name: str) -> bool:
    """Return whether a text is a plain file name."""
    return Path(name).name == name and name.isprintable()


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected a file of the official archive")
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from error


def _train_files(folder: Path, classes: list[str]) -> ImageFiles:
    paths = []
    for name in classes:
        images = folder / "train" / name / "images"
        if not images.is_dir():
            raise FileNotFoundError(f"{images} is missing, expected the images of that class")
        paths.append(sorted(images.glob("*.JPEG")))
    labels = np.repeat(np.arange(len(classes)), [len(p) for p in paths])
    _check_counts(labels, classes, folder / "train")
    return ImageFiles([path for p in paths for path in p], labels)


def _val_files(folder: Path, classes: list[str]) -> ImageFiles:
    annotations = folder / "val" / "val_annotations.txt"
    label_of = {name: label for label, name in enumerate(classes)}
    paths, labels = [], []
    for number, line in enumerate(_read_text(annotations).splitlines(), 1):
        name, wnid, *_ = [*line.split("\t"), "", ""]
        if wnid not in label_of or not _is_file_name(name):
            raise ValueError(
                f"{annotations}, line {number} is {line!r}, expected an image and its class"
            )
        paths.append(folder / "val" / "images" / name)
        labels.append(label_of[wnid])
    for image in paths:
        if not image.is_file():
            raise FileNotFoundError(
                f"{image} is missing, expected an image that {annotations} names"
            )
    label_array = np.array(labels, np.int64)
    _check_counts(label_array, classes, annotations)
    return ImageFiles(paths, label_array)


def _check_counts(labels: IntArray, classes: list[str], source: Path) -> None:
    """Raise a ValueError unless all classes have equally many images."""
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    for count, name in zip(counts, classes, strict=True):
        if count == 0 or count != max(counts):
            wanted = f"{max(counts)} as for other classes" if max(counts) else "at least 1"
            raise ValueError(f"{source} has {count} images of class {name}, expected {wanted}")
