"""A user's own images: one folder per class, decoded in parallel, cached on disk where asked."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dualcba.data.dataset import Dataset, from_arrays
from dualcba.data.fetch import locked, space_for, visible
from dualcba.errors import expected
from dualcba.randomness import generator

Pixels = NDArray[np.uint8]
Rows = NDArray[np.int64]
T = TypeVar("T")

BLOCK = 128  # images a worker reads at a time
WORTH_IT = 512  # fewer images are read without workers
MOST_WORKERS = 16
GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
ALPHA = {"LA", "PA", "RGBA", "RGBa"}
ORIENTATION = 0x0112  # in a photograph's EXIF data; how to turn it upright:
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
TURNED = {"JPEG", "MPO", "WEBP"}  # formats of photographs; others would be decoded to know
IGNORED = {"thumbs.db", "desktop.ini", "__macosx"}
CACHE_VERSION = 1
CACHE_ABOUT = "cache.json"
NOT_AN_IMAGE = (SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error,
                Image.DecompressionBombError)  # fmt: skip


# ── One image ─────────────────────────────────────────────────────────────────────────────────


def read_image(path: Path, shape: tuple[int, int, int] | None = None) -> Pixels:
    """An image as (channels, H, W) bytes; with a `shape`, made to fit it.

    Palettes become colours, what is transparent becomes white, 16 bits become 8, a photograph
    is turned upright. Another size is scaled to cover the wanted one and cut at the middle.
    """
    return _read(path, lambda image: pixels(image, shape))


def _read(path: Path, use: Callable[[Image.Image], T]) -> T:
    try:
        with Image.open(path) as image:
            return use(image)
    except OSError as error:
        if error.errno is not None:  # of the file system, not of the image
            raise
        raise ValueError(f"{path} cannot be read as an image: {_line(error)}") from error
    except NOT_AN_IMAGE as error:
        raise ValueError(f"{path} cannot be read as an image: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def pixels(image: Image.Image, shape: tuple[int, int, int] | None = None) -> Pixels:
    """A Pillow image as (channels, H, W) bytes; see `read_image`.

    >>> pixels(Image.new("RGB", (4, 2), (255, 0, 0)))[:, 0, 0].tolist()
    [255, 0, 0]
    >>> pixels(Image.new("RGB", (4, 2)), (1, 8, 8)).shape
    (1, 8, 8)
    """
    channels = shape[0] if shape else 1 if image.mode in GREY else 3
    image.load()  # first: of a TIFF this turns it, and forgets the orientation
    turn = UPRIGHT.get(_orientation(image))
    flat = _flat(image, "L" if channels == 1 else "RGB")
    flat = flat if turn is None else flat.transpose(turn)
    if shape and flat.size != (shape[2], shape[1]):
        flat = ImageOps.fit(flat, (shape[2], shape[1]), Image.Resampling.BILINEAR)
    array = np.asarray(flat, np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except (SyntaxError, ValueError, TypeError, OSError, struct.error):
        return 1  # the image may be sound though its EXIF data are not


def _flat(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        high = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(high.clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


def _probe(paths: Sequence[Path]) -> list[tuple[int, int, bool]]:
    """Height, width and whether grey, from the headers alone."""
    return [_read(path, _header) for path in paths]


def _header(image: Image.Image) -> tuple[int, int, bool]:
    width, height = image.size
    if image.format in TURNED and _orientation(image) > 4:  # lies on its side
        width, height = height, width
    return height, width, image.mode in GREY


# ── Many images ───────────────────────────────────────────────────────────────────────────────


class _Blocks(torch.utils.data.Dataset[Any], Generic[T]):
    """Blocks of files, and what is to be done with each; trouble is handed over, not raised."""

    def __init__(self, work: Callable[[Sequence[Path]], T], paths: Sequence[Path]) -> None:
        self.work = work
        self.blocks = [paths[k : k + BLOCK] for k in range(0, len(paths), BLOCK)]

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, k: int) -> T | Exception:
        try:
            return self.work(self.blocks[k])
        except (ValueError, OSError) as error:
            return error


class _Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed or 0
        return Text(f"{speed:7.0f} images/s", no_wrap=True)


def _as_it_is(x: T) -> T:
    return x


def _workers(images: int) -> int:
    """Processes to read with: as many as there are cores, where they can be forked safely."""
    if images < WORTH_IT or sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 0
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_WORKERS) if cores > 1 else 0


def in_parallel(
    work: Callable[[Sequence[Path]], T], paths: Sequence[Path], title: str, show: bool | None
) -> Iterator[T]:
    """`work` done on blocks of files by several processes; the results in order."""
    results = iter(_loader(_Blocks(work, paths), _workers(len(paths))))
    # the workers are started: before the bar, which starts a thread
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), _Speed(),
               TimeRemainingColumn())  # fmt: skip
    hidden = not visible(show) or len(paths) < WORTH_IT
    try:
        with Progress(*columns, console=Console(stderr=True), disable=hidden) as bars:
            bar = bars.add_task(title, total=len(paths))
            for k, result in enumerate(results):
                if isinstance(result, Exception):
                    raise result
                yield result
                bars.update(bar, completed=min((k + 1) * BLOCK, len(paths)))
    finally:
        del results  # ends the workers at once; left to the garbage collector, it takes seconds


def _loader(blocks: _Blocks[T], workers: int) -> torch.utils.data.DataLoader[T | Exception]:
    return torch.utils.data.DataLoader(
        blocks,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator(),  # so that the global one is left alone
    )


def _decode(paths: Sequence[Path], shape: tuple[int, int, int]) -> Pixels:
    return np.stack([read_image(path, shape) for path in paths])


@dataclass(frozen=True)
class Files:
    """Images and their labels."""

    paths: list[Path]
    labels: Rows

    def pick(self, rows: Rows) -> Files:
        """Those of the rows."""
        return Files([self.paths[i] for i in rows], self.labels[rows])


Shape = tuple[int, int, int]
Arrays = dict[str, NDArray[Any]]
"""`train_x`, `train_y`, `test_x`, `test_y`."""


def in_memory(parts: Mapping[str, Files], shape: Shape, show: bool | None) -> Arrays:
    """The decoded parts."""
    _check_memory(sum(len(files.paths) for files in parts.values()), shape)
    arrays: Arrays = {}
    for part, files in parts.items():
        x = np.empty((len(files.paths), *shape), np.uint8)
        start = 0
        for block in in_parallel(partial(_decode, shape=shape), files.paths, f"read {part}", show):
            x[start : start + len(block)] = block
            start += len(block)
        arrays |= {f"{part}_x": x, f"{part}_y": files.labels}
    return arrays


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(images: int, shape: Shape) -> None:
    needed = images * int(np.prod(shape, dtype=np.int64))
    if sys.platform == "linux" and needed > _memory():
        size = f"{images} images of {shape[1]}×{shape[2]} take {needed / 2**30:.1f} GiB"
        raise ValueError(f"{size}, more than the memory: give a smaller size, or a cache folder")


def on_disk(
    cache: Path, about: Mapping[str, Any], parts: Mapping[str, Files], shape: Shape,
    show: bool | None,
) -> Arrays:  # fmt: skip
    """The decoded parts, memory-mapped from `cache`; decoded once, for as long as `about` holds."""
    if (found := open_cache(cache, about)) is not None:
        return found
    cache.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache.with_name(f".{cache.name}.lock"), show):
        if (found := open_cache(cache, about)) is None:
            _write_cache(cache, about, parts, shape, show)
            found = open_cache(cache, about)
    if found is None:
        raise OSError(f"{cache} was written and cannot be read back")
    return found


def open_cache(cache: Path, about: Mapping[str, Any]) -> Arrays | None:
    """The arrays of a cache that says of itself what `about` says; none if it does not."""
    try:
        known = json.loads((cache / CACHE_ABOUT).read_text())
        if not isinstance(known, dict) or known.get("version") != CACHE_VERSION:
            return None
        if any(known.get(key) != value for key, value in about.items()):
            return None
        names = [f"{part}_{what}" for part in known["count"] for what in "xy"]
        # "c": private pages, so that torch may think them writable and the file stays as it is
        arrays = {n: np.load(cache / f"{n}.npy", "c", allow_pickle=False) for n in names}
        counts = [known["count"][name[:-2]] for name in names]
    except (FileNotFoundError, NotADirectoryError, ValueError, EOFError, KeyError, TypeError):
        return None
    return arrays if [len(a) for a in arrays.values()] == counts else None


def _write_cache(
    cache: Path, about: Mapping[str, Any], parts: Mapping[str, Files], shape: Shape,
    show: bool | None,
) -> None:  # fmt: skip
    if cache.exists() and not (cache / CACHE_ABOUT).exists():
        raise ValueError(f"{cache} is there and is no cache, expected one, or nothing")
    temporary = cache.with_name(f".{cache.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    count = {part: len(files.paths) for part, files in parts.items()}
    text = json.dumps({"version": CACHE_VERSION, "count": count, **about}, indent=1)
    try:
        with space_for(cache):
            for part, files in parts.items():
                _write_images(temporary / f"{part}_x.npy", files.paths, shape, show)
                np.save(temporary / f"{part}_y.npy", files.labels)
            (temporary / CACHE_ABOUT).write_text(text)
        shutil.rmtree(cache, ignore_errors=True)
        os.rename(temporary, cache)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_images(path: Path, images: Sequence[Path], shape: Shape, show: bool | None) -> None:
    """Written in order rather than into a map: a full disk is then an error, not a crash."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), *shape)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in in_parallel(partial(_decode, shape=shape), images, "decode, once", show):
            file.write(block.tobytes())


# ── A folder per class ────────────────────────────────────────────────────────────────────────


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
    found = [h for block in in_parallel(_probe, paths, "look at images", show) for h in block]
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
