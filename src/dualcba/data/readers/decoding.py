"""Many images: decoded in parallel, into the memory or once and for all into a cache on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
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

from dualcba.data.disk import locked, space_for, visible
from dualcba.data.readers.images import Pixels, read_image

Rows = NDArray[np.int64]
T = TypeVar("T")

BLOCK = 128  # images a worker reads at a time
WORTH_IT = 512  # fewer images are read without workers
MOST_WORKERS = 16
CACHE_VERSION = 1
CACHE_ABOUT = "cache.json"


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
