"""Decode many image files in parallel."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dualcba.data.dataset import IntArray
from dualcba.data.progress import progress_bars, progress_enabled
from dualcba.data.readers.images import ByteArray, ImageShape, read_image

T = TypeVar("T")

BLOCK = 128  # images processed at a time by a worker
MIN_PARALLEL = 512  # fewer images are processed without workers and without a progress bar
MAX_WORKERS = 16


@dataclass(frozen=True)
class ImageFiles:
    """Paths of images and their labels."""

    paths: list[Path]
    labels: IntArray

    def select(self, rows: IntArray) -> ImageFiles:
        """Return the images with these indices."""
        return ImageFiles([self.paths[i] for i in rows], self.labels[rows])


DatasetArrays = dict[str, NDArray[Any]]
"""The arrays `train_x`, `train_y`, `test_x` and `test_y`."""


def decode_to_memory(
    parts: Mapping[str, ImageFiles], shape: ImageShape, show: bool | None
) -> DatasetArrays:
    """Decode all images of each part into memory.

    Parameters
    ----------
    parts
        The images of `"train"` and of `"test"`.
    shape
        The shape to which every image is scaled and cropped.
    show
        Whether to show a progress bar; by default if stderr is a terminal.
    """
    _check_memory(sum(len(files.paths) for files in parts.values()), shape)
    arrays: DatasetArrays = {}
    for part, files in parts.items():
        x = np.empty((len(files.paths), *shape), np.uint8)
        start = 0
        for block in decode_blocks(files.paths, shape, f"read {part}", show):
            x[start : start + len(block)] = block
            start += len(block)
        arrays |= {f"{part}_x": x, f"{part}_y": files.labels}
    return arrays


def decode_blocks(
    paths: Sequence[Path], shape: ImageShape, title: str, show: bool | None
) -> Iterator[ByteArray]:
    """Yield the decoded images in order, as arrays (n, channels, H, W) of at most `BLOCK` images.

    `title` is the label of the progress bar.
    """
    return map_blocks(partial(_decode, shape=shape), paths, title, show)


def _decode(paths: Sequence[Path], shape: ImageShape) -> ByteArray:
    return np.stack([read_image(path, shape) for path in paths])


def _check_memory(images: int, shape: ImageShape) -> None:
    needed = images * int(np.prod(shape, dtype=np.int64))
    if sys.platform == "linux" and needed > _total_memory():
        size = f"{images} images of {shape[1]}×{shape[2]} take {needed / 2**30:.1f} GiB"
        raise ValueError(f"{size}, more than the memory: give a smaller size, or a cache folder")


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---------------------------------------------------------------------- worker processes


def map_blocks(
    function: Callable[[Sequence[Path]], T], paths: Sequence[Path], title: str, show: bool | None
) -> Iterator[T]:
    """Apply a function to blocks of files in several processes; yield the results in order.

    Parameters
    ----------
    function
        Called with at most `BLOCK` paths. A `ValueError` or `OSError` is raised again here.
    paths
        All files.
    title
        The label of the progress bar.
    show
        Whether to show a progress bar; by default if stderr is a terminal.
    """
    # start the workers first: they are forked, and the progress bar starts a thread
    results = iter(_loader(_Blocks(function, paths), _num_workers(len(paths))))
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), _Speed(),
               TimeRemainingColumn())  # fmt: skip
    enabled = progress_enabled(show) and len(paths) >= MIN_PARALLEL
    try:
        with progress_bars(*columns, enabled=enabled) as bars:
            bar = bars.add_task(title, total=len(paths))
            for k, result in enumerate(results):
                if isinstance(result, Exception):
                    raise result
                yield result
                bars.update(bar, completed=min((k + 1) * BLOCK, len(paths)))
    finally:
        del results  # stops the workers now; waiting for the garbage collector takes seconds


class _Blocks(torch.utils.data.Dataset[Any], Generic[T]):
    """The results of a function for each block of files; errors are returned, not raised."""

    def __init__(self, function: Callable[[Sequence[Path]], T], paths: Sequence[Path]) -> None:
        self.function = function
        self.blocks = [paths[k : k + BLOCK] for k in range(0, len(paths), BLOCK)]

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, k: int) -> T | Exception:
        try:
            return self.function(self.blocks[k])
        except (ValueError, OSError) as error:
            return error


class _Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed or 0
        return Text(f"{speed:7.0f} images/s", no_wrap=True)


def _num_workers(images: int) -> int:
    """Return the number of worker processes; 0 if forking is unsafe or not worthwhile."""
    daemon = multiprocessing.current_process().daemon
    if images < MIN_PARALLEL or sys.platform != "linux" or daemon:
        return 0
    cores = len(os.sched_getaffinity(0))
    return min(cores, MAX_WORKERS) if cores > 1 else 0


def _loader(blocks: _Blocks[T], workers: int) -> torch.utils.data.DataLoader[T | Exception]:
    return torch.utils.data.DataLoader(
        blocks,
        batch_size=None,
        collate_fn=_identity,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator(),  # else the loader advances the global generator
    )


def _identity(x: T) -> T:
    return x
