"""A user's own images: one folder per class, a test part held out, cached on disk where asked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.readers.decoding import BLOCK, Files, Rows, Shape, in_memory, in_parallel, on_disk
from dualcba.data.readers.images import Pixels, probe
from dualcba.errors import expected
from dualcba.randomness import generator

IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}


def hold_out(
    y: Rows, fraction: float, seed: int, names: Sequence[str] | None = None
) -> tuple[Rows, Rows]:
    """Rows to train with and rows to test with: of each class the fraction, at least one of each.

    >>> train, test = hold_out(np.repeat([0, 1], [10, 5]), 0.2, seed=0)
    >>> len(train), len(test), int(sum(test < 10))
    (12, 3, 2)
    """
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise ValueError(expected("holdout", fraction, "a fraction between 0 and 1"))
    if not len(y):
        raise ValueError("there is no sample, expected some to hold a part of them out")
    if y.min() < 0:
        raise ValueError(expected(f"y[{y.argmin()}]", int(y.min()), "a label of at least 0"))
    test: list[Rows] = []
    for label in np.unique(y).tolist():
        rows = np.flatnonzero(y == label)
        if len(rows) < 2:
            which = repr(names[label]) if names else label
            raise ValueError(f"class {which} has one sample, expected two, or a test set")
        count = min(max(round(len(rows) * fraction), 1), len(rows) - 1)
        test.append(generator(seed, "holdout", label).permutation(rows)[:count])
    held = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(y)), held), held


def channel_statistics(x: Pixels) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of bytes as [0, 1], from histograms.

    >>> channel_statistics(np.array([[[[0, 255]]]], np.uint8))
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
    """A dataset from images in one folder per class; the classes are sorted by name.

    Parameters
    ----------
    root
        Holds the folders, or `train` and `test` (or `val`) which hold them.
    size
        Height and width, or one number for both; by default the most common size of the images.
    holdout, seed
        Where there is no test set: the fraction of each class that becomes one, and its seed.
    mean, std
        Per channel, of values in [0, 1]; by default those of the training images.
    pad, flip
        Augmentation: by default a crop after padding by an eighth of the side, at most 4 pixels,
        and mirroring.
    cache
        A folder to keep the decoded images in: they are then read from there, and may be larger
        than the memory. Without, they are decoded into the memory each time.
    show
        Whether to show a progress bar; by default where stderr is a terminal.
    """
    root, wanted = Path(root), _pair(size)
    classes, parts = _find(root, holdout, seed)
    shape = _shape([p for files in parts.values() for p in files.paths], wanted, show)
    if cache is None:
        arrays = in_memory(parts, shape, show)
    else:
        arrays = on_disk(Path(cache), _about(root, classes, parts, shape), parts, shape, show)
    if mean is None or std is None:
        mean, std = channel_statistics(arrays["train_x"])
    return from_arrays(
        **arrays, num_classes=len(classes), mean=mean, std=std,
        pad=min(4, min(shape[1:]) // 8) if pad is None else pad, flip=flip,
        name=name or root.resolve().name,
    )  # fmt: skip


def _find(root: Path, holdout: float, seed: int) -> tuple[list[str], dict[str, Files]]:
    """The names of the classes, and the images of the training and the test part."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is missing, expected a folder of images by class")
    train = root / "train"
    if not (train.is_dir() and _folders(train) and not _is_class(train)):
        classes, files = _images(root)
        return classes, _split(files, holdout, seed, classes)
    classes, files = _images(train)
    for test in (root / "test", root / "val"):
        if test.is_dir():
            return classes, {"train": files, "test": _images(test, classes)[1]}
    return classes, _split(files, holdout, seed, classes)


def _split(files: Files, holdout: float, seed: int, classes: list[str]) -> dict[str, Files]:
    train, test = hold_out(files.labels, holdout, seed, classes)
    return {"train": files.pick(train), "test": files.pick(test)}


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and _wanted(p))


def _is_class(folder: Path) -> bool:
    """Whether images lie in it directly: a class may be called `train`."""
    return any(p.is_file() and _wanted(p) for p in folder.iterdir())


def _wanted(path: Path) -> bool:
    return not path.name.startswith(".") and path.name.lower() not in IGNORED


def _images(root: Path, classes: list[str] | None = None) -> tuple[list[str], Files]:
    """All images under the class folders of `root`; the classes must be as given, if given."""
    folders = {p.name: p for p in _folders(root)}
    if not folders:
        raise ValueError(f"{root} holds no folders, expected one folder of images per class")
    classes = list(folders) if classes is None else classes
    for name in classes:
        if name not in folders:
            raise FileNotFoundError(f"{root / name} is missing, expected a folder of that class")
    for name, folder in folders.items():
        if name not in classes:
            raise ValueError(f"{folder} is of a class without training images, expected some")
    found = [_files(folders[name]) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in found])
    return classes, Files([p for paths in found for p in paths], labels)


def _files(folder: Path) -> list[Path]:
    inner = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    paths = [folder / p for p in sorted(inner) if all(_wanted(Path(part)) for part in p.parts)]
    if not paths:
        raise ValueError(f"{folder} is empty, expected the images of that class")
    return paths


def _shape(paths: list[Path], size: tuple[int, int] | None, show: bool | None) -> Shape:
    found = [h for block in in_parallel(probe, paths, "look at images", show) for h in block]
    channels = 1 if all(grey for _, _, grey in found) else 3
    if size is None:
        sizes = Counter((height, width) for height, width, _ in found)
        height, width = min(sizes, key=lambda s: (-sizes[s], s))
    else:
        height, width = size
    return channels, height, width


def _pair(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width, from one number or two.

    >>> _pair(32), _pair([24, 32])
    ((32, 32), (24, 32))
    """
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair)
    if len(pair) != 2 or not whole:
        raise ValueError(expected("size", size, "a number of pixels, or height and width"))
    return pair


def _about(root: Path, classes: list[str], parts: dict[str, Files], shape: Shape) -> dict[str, Any]:
    """What a cache must have been made from, to be of use: the same files, split the same way."""
    files = hashlib.sha256()
    for part, content in parts.items():
        for path, label in zip(content.paths, content.labels.tolist(), strict=True):
            stat = path.stat()
            line = (part, str(path.relative_to(root)), label, stat.st_size, stat.st_mtime_ns)
            files.update(json.dumps(line).encode())
    return {"shape": list(shape), "classes": classes, "files": files.hexdigest()}
