"""Fetch published datasets from their official addresses: download, verify, unpack, check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from torch import Tensor

from dualcba.data.disk import locked, visible
from dualcba.data.download.archives import unpack
from dualcba.data.download.published import FACTS, SOURCES, Source
from dualcba.data.download.remote_file import Tell, download, verified
from dualcba.errors import expected, unknown


def fetch(
    name: str, root: str | Path, *, show: bool | None = None, tries: int = 5, timeout: float = 30.0
) -> Path:
    """Download and unpack a dataset into `root`, unless it is there; returns its folder.

    Safe to call from several processes at once: one fetches, the others wait and find it done.

    Parameters
    ----------
    name
        One of `SOURCES`.
    show
        Whether to show a progress bar; by default where stderr is a terminal.
    tries
        How many failures in a row, without a new byte, end it.
    timeout
        Seconds to wait for an answer, and for each next piece of it.
    """
    if name not in SOURCES:
        raise ValueError(unknown("dataset to fetch", name, SOURCES))
    source, root = SOURCES[name], Path(root)
    folder = root / source.folder
    if _present(source, folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f".{name}.lock", show), _bars(show) as bars:
        if not _present(source, folder):
            _bring(source, folder, bars, tries, timeout)
    return folder


def _present(source: Source, folder: Path) -> bool:
    if not source.holds:
        return all(verified(folder / file.name, file.md5) for file in source.files)
    missing = [name for name in source.holds if not (folder / name).exists()]
    if folder.exists() and missing:
        raise ValueError(f"{folder} lacks {missing[0]}; move it away and fetch again")
    return not missing


def _bring(source: Source, folder: Path, bars: Progress, tries: int, timeout: float) -> None:
    place = folder.parent if source.holds else folder
    place.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        tell = _bar(bars, file.name)
        archive = download(file, place / file.name, tries=tries, timeout=timeout, tell=tell)
        if source.holds:
            unpack(archive, folder, _bar(bars, f"unpack {source.folder}"))


def _bars(show: bool | None) -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), disable=not visible(show))


def _bar(bars: Progress, title: str) -> Tell:
    task = bars.add_task(title, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)


@dataclass(frozen=True)
class Report:
    """What `check` found: `per_class` are the fewest and most training samples of a class."""

    name: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    per_class: tuple[int, int]
    published: bool

    def __str__(self) -> str:
        low, high = self.per_class
        each = f"{low}" if low == high else f"{low} to {high}"
        shape = "×".join(map(str, self.shape))
        return (
            f"{self.name}: {self.train} training and {self.test} test samples of {shape}, "
            f"{self.classes} classes with {each} training samples each"
            + (", as published" if self.published else "")
        )


def check(name: str, root: str | Path | None = None, *, show: bool | None = None) -> Report:
    """Read a dataset, by name or a user's own, and compare it with what is known of it.

    >>> print(check("digits"))
    digits: 1442 training and 355 test samples of 1×8×8, 10 classes with 140 to 147 training
    samples each, as published
    """
    from dualcba.data import load_dataset

    data = load_dataset(name, root, show=show)
    train, test = (_counts(y, data.num_classes) for y in (data.train_y, data.test_y))
    for part, counts in (("training", train), ("test", test)):
        if min(counts) == 0:
            raise ValueError(f"class {counts.index(0)} of {data.name} has no {part} sample")
    sizes = (len(data.train_x), len(data.test_x), data.input_shape, data.num_classes)
    if facts := FACTS.get(name):
        wanted = (facts.train, facts.test, facts.shape, facts.classes)
        titles = ("number of training samples", "number of test samples", "shape of a sample",
                  "number of classes")  # fmt: skip
        for title, value, known in zip(titles, sizes, wanted, strict=True):
            if value != known:
                raise ValueError(expected(f"{title} of {name}", value, str(known)))
        if facts.balanced and len({*train}) + len({*test}) > 2:
            raise ValueError(f"the classes of {name} differ in size, expected as many of each")
    return Report(data.name, *sizes, (min(train), max(train)), facts is not None)


def _counts(y: Tensor, classes: int) -> list[int]:
    counts: list[int] = torch.bincount(y, minlength=classes).tolist()
    return counts
