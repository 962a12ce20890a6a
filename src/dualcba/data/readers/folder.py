"""Images in one folder per class, with an optional cache of the decoded images."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.readers.cache import decode_to_cache
from dualcba.data.readers.decoding import BLOCK, ImageFiles, decode_to_memory, map_blocks
from dualcba.data.readers.holdout import hold_out
from dualcba.data.readers.images import ByteArray, ImageShape, is_other_file, read_headers
from dualcba.errors import expected

IGNORED_NAMES = {"thumbs.db", "desktop.ini", "__macosx"}


def from_folder(
    root: str | Path,
    *,
    size: int | Sequence[int] | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int | None = None,
    flip: bool = True,
    cache: str | Path | None = None,
    name: str | None = None,
    show: bool | None = None,
) -> Dataset:
    """Make a dataset from images in one folder per class.

    Labels follow the sorted names of the class folders. Other files, such as text files, are
    ignored: those without the suffix of an image that Pillow cannot open.

    Parameters
    ----------
    root
        Contains the class folders; or `train` and `test` (or `val`), which contain them.
    size
        Height and width, or one number for both; by default the most common size of the images.
    holdout, seed
        If there is no test set: the fraction of each class that becomes the test set, and the seed
        of this split.
    mean, std
        Per channel, of values in [0, 1]; by default those of the training images.
    pad, flip
        Augmentation, see `Transform`. By default images are padded by an eighth of the shorter
        side, at most 4 pixels, and flipped.
    cache
        A folder for the decoded images, which are then memory-mapped and may exceed the memory. By
        default, images are decoded into memory on every call.
    name
        The name of the dataset; by default that of the folder.
    show
        Whether to show a progress bar; by default if stderr is a terminal.
    """
    root, height_and_width = Path(root), _height_and_width(size)
    classes, parts = _find_parts(root, holdout, seed)
    paths = [path for files in parts.values() for path in files.paths]
    shape = _image_shape(paths, height_and_width, show)
    if cache is None:
        arrays = decode_to_memory(parts, shape, show)
    else:
        metadata = _cache_metadata(root, classes, parts, shape)
        arrays = decode_to_cache(Path(cache), metadata, parts, shape, show)
    if mean is None or std is None:
        mean, std = channel_mean_and_std(arrays["train_x"])
    data = from_arrays(
        **arrays, num_classes=len(classes), mean=mean, std=std,
        pad=min(4, min(shape[1:]) // 8) if pad is None else pad, flip=flip,
        name=name or root.resolve().name,
    )  # fmt: skip
    return replace(data, class_names=tuple(classes))


def channel_mean_and_std(x: ByteArray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation per channel of uint8 images, scaled to [0, 1].

    They are computed from histograms, which needs little memory.

    >>> channel_mean_and_std(np.array([[[[0, 255]]]], np.uint8))
    ([0.5], [0.7071067811865476])
    """
    counts = np.zeros((x.shape[1], 256), np.int64)
    for k in range(0, len(x), BLOCK):
        for c in range(x.shape[1]):
            counts[c] += np.bincount(x[k : k + BLOCK, c].ravel(), minlength=256)
    values, total = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / np.maximum(total - 1, 1)
    return mean.tolist(), np.sqrt(variance).clip(min=1e-6).tolist()


def _find_parts(root: Path, holdout: float, seed: int) -> tuple[list[str], dict[str, ImageFiles]]:
    """Return the names of the classes, and the images of `"train"` and `"test"`."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is missing, expected a folder of images by class")
    train = root / "train"
    if not (train.is_dir() and _class_folders(train) and not _holds_files(train)):
        classes, files = _find_images(root)
        return classes, _split(files, holdout, seed, classes)
    classes, files = _find_images(train)
    for test in (root / "test", root / "val"):
        if test.is_dir():
            return classes, {"train": files, "test": _find_images(test, classes)[1]}
    return classes, _split(files, holdout, seed, classes)


def _split(
    files: ImageFiles, holdout: float, seed: int, classes: list[str]
) -> dict[str, ImageFiles]:
    train, test = hold_out(files.labels, holdout, seed, classes)
    return {"train": files.select(train), "test": files.select(test)}


def _class_folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not is_ignored(p.name))


def _holds_files(folder: Path) -> bool:
    """Return whether a folder directly contains images; then `train` is a class name."""
    files = (p for p in folder.iterdir() if p.is_file() and not is_ignored(p.name))
    return any(not is_other_file(p) for p in files)


def is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden, or metadata of an operating system."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _find_images(root: Path, classes: list[str] | None = None) -> tuple[list[str], ImageFiles]:
    """Return the class names and all images in the class folders of `root`.

    If `classes` are given, the folders must be exactly these.
    """
    folders = {p.name: p for p in _class_folders(root)}
    if not folders:
        raise ValueError(f"{root} holds no folders, expected one folder of images per class")
    classes = list(folders) if classes is None else classes
    for name in classes:
        if name not in folders:
            raise FileNotFoundError(f"{root / name} is missing, expected a folder of that class")
    for name, folder in folders.items():
        if name not in classes:
            raise ValueError(f"{folder} is of a class without training images, expected {classes}")
    paths = [_files_of_class(folders[name]) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(p) for p in paths])
    return classes, ImageFiles([path for p in paths for path in p], labels)


def _files_of_class(folder: Path) -> list[Path]:
    relative = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    kept = [folder / p for p in sorted(relative) if not any(map(is_ignored, p.parts))]
    paths = [path for path in kept if not is_other_file(path)]
    if not paths:
        raise ValueError(f"{folder} is empty, expected the images of that class")
    return paths


def _image_shape(paths: list[Path], size: tuple[int, int] | None, show: bool | None) -> ImageShape:
    """Return the shape to decode to: one channel if all images are grey, the most common size."""
    headers = [h for block in map_blocks(read_headers, paths, "read sizes", show) for h in block]
    channels = 1 if all(is_grey for _, _, is_grey in headers) else 3
    if size is None:
        sizes = Counter((height, width) for height, width, _ in headers)
        size = min(sizes, key=lambda s: (-sizes[s], s))
    return channels, *size


def _height_and_width(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Return height and width, given one number or two.

    >>> _height_and_width(32), _height_and_width([24, 32])
    ((32, 32), (24, 32))
    """
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, Sequence) else (size, size)
    valid = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair)
    if len(pair) != 2 or not valid:
        raise ValueError(expected("size", size, "a number of pixels, or height and width"))
    return pair


def _cache_metadata(
    root: Path, classes: list[str], parts: dict[str, ImageFiles], shape: ImageShape
) -> dict[str, Any]:
    """Return the values on which a cache depends: files with sizes and times, split and shape."""
    checksum = hashlib.sha256()
    for part, files in parts.items():
        for path, label in zip(files.paths, files.labels.tolist(), strict=True):
            stat = path.stat()
            line = (part, str(path.relative_to(root)), label, stat.st_size, stat.st_mtime_ns)
            checksum.update(json.dumps(line).encode())
    return {"shape": list(shape), "classes": classes, "files": checksum.hexdigest()}
