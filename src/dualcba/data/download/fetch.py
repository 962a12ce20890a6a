"""Download published datasets and check that datasets are complete."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dualcba.data.disk import file_lock
from dualcba.data.download.archives import unpack
from dualcba.data.download.published import (
    EXPECTED_CONTENTS,
    PUBLISHED_DATASETS,
    ExpectedContents,
    PublishedDataset,
)
from dualcba.data.download.remote_file import download, is_intact
from dualcba.data.progress import add_bar, progress_bars, progress_enabled
from dualcba.errors import expected, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from dualcba.data.dataset import Dataset


def fetch(name: str, root: str | Path, *, show: bool | None = None) -> Path:
    """Download and unpack a dataset into `root`, unless it is already there; return its folder.

    Several processes may call this at once: one downloads, the others wait for it.

    Parameters
    ----------
    name
        A key of `PUBLISHED_DATASETS`.
    root
        The folder to which the dataset's own folder is added.
    show
        Whether to show a progress bar; by default if stderr is a terminal.
    """
    if name not in PUBLISHED_DATASETS:
        raise ValueError(unknown("dataset to fetch", name, PUBLISHED_DATASETS))
    dataset, root = PUBLISHED_DATASETS[name], Path(root)
    folder = root / dataset.folder
    if _is_complete(dataset, folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with file_lock(root / f".{name}.lock", show), _download_bars(show) as bars:
        if not _is_complete(dataset, folder):
            _download_all(dataset, folder, bars)
    return folder


def _is_complete(dataset: PublishedDataset, folder: Path) -> bool:
    if not dataset.unpacked:
        return all(is_intact(folder / file.name, file) for file in dataset.files)
    missing = [path for path in dataset.unpacked if not (folder / path).exists()]
    if folder.exists() and missing:
        raise ValueError(f"{folder} lacks {missing[0]}; move the folder away and fetch again")
    return not missing


def _download_all(dataset: PublishedDataset, folder: Path, bars: Progress) -> None:
    download_folder = folder.parent if dataset.unpacked else folder
    download_folder.mkdir(parents=True, exist_ok=True)
    for file in dataset.files:
        bar = add_bar(bars, file.name)
        path = download(file, download_folder / file.name, on_progress=bar)
        if dataset.unpacked:
            unpack(path, folder, add_bar(bars, f"unpack {dataset.folder}"))


def _download_bars(show: bool | None) -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeRemainingColumn())  # fmt: skip
    return progress_bars(*columns, enabled=progress_enabled(show))


@dataclass(frozen=True)
class DatasetSummary:
    """The sizes of a dataset that passed `check`."""

    name: str
    num_train: int
    num_test: int
    input_shape: tuple[int, ...]
    num_classes: int
    train_per_class: tuple[int, int]
    """The smallest and the largest number of training samples per class."""
    as_published: bool
    """Whether the sizes were compared with those of the published dataset."""
    content_as_published: bool
    """Whether the digest was compared with that of the published dataset."""
    labels_as_published: bool
    """Whether the labels were compared with those of the published dataset."""
    digest: str
    """See `Dataset.digest`."""

    def __str__(self) -> str:
        low, high = self.train_per_class
        per_class = f"{low}" if low == high else f"{low} to {high}"
        shape = "×".join(map(str, self.input_shape))
        return (
            f"{self.name}: {self.num_train} training and {self.num_test} test samples of {shape}, "
            f"{self.num_classes} classes with {per_class} training samples each"
            + (f", as published{self._compared_by()}" if self.as_published else "")
        )

    def _compared_by(self) -> str:
        if self.content_as_published:
            return ""
        return ", by counts and labels" if self.labels_as_published else ", by counts"


def check(name: str, root: str | Path | None = None) -> DatasetSummary:
    """Load a dataset and check that it is complete.

    Every class must have training and test samples. The sizes of a published dataset must be those
    in `EXPECTED_CONTENTS`, and so must the digests where they are given there.

    Parameters
    ----------
    name, root
        As for `load_dataset`.

    >>> print(check("digits"))
    digits: 1442 training and 355 test samples of 1×8×8, 10 classes with 140 to 147 training
    samples each, as published
    """
    from dualcba.data import load_dataset

    data = load_dataset(name, root)
    train, test = (_class_counts(y, data.num_classes) for y in (data.train_y, data.test_y))
    for part, counts in (("training", train), ("test", test)):
        if min(counts) == 0:
            raise ValueError(f"class {counts.index(0)} of {data.name} has no {part} sample")
    wanted = EXPECTED_CONTENTS.get(name)
    summary = DatasetSummary(
        data.name, len(data.train_x), len(data.test_x), data.input_shape, data.num_classes,
        (min(train), max(train)), as_published=wanted is not None,
        content_as_published=wanted is not None and wanted.digest is not None,
        labels_as_published=wanted is not None and wanted.labels is not None, digest=data.digest,
    )  # fmt: skip
    if wanted is not None:
        _compare(name, summary, wanted, train, test)
        _compare_digest(f"samples and labels of {name}", data.digest, wanted.digest)
        _compare_digest(f"labels of {name}", label_digest(data), wanted.labels)
    return summary


def label_digest(data: Dataset) -> str:
    """Return the SHA-256 of the training and test labels as little-endian int64."""
    labels = np.concatenate([data.train_y.numpy(), data.test_y.numpy()])
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def _compare_digest(what: str, found: str, published: str | None) -> None:
    if published not in (None, found):
        raise ValueError(expected(f"digest of the {what}", found, f"{published}, as published"))


def _compare(
    name: str,
    summary: DatasetSummary,
    wanted: ExpectedContents,
    train: Sequence[int],
    test: Sequence[int],
) -> None:
    """Raise a `ValueError` if a dataset is not as published; `train`, `test`: class counts."""
    sizes = (
        ("number of training samples", summary.num_train, wanted.num_train),
        ("number of test samples", summary.num_test, wanted.num_test),
        ("shape of a sample", summary.input_shape, wanted.input_shape),
        ("number of classes", summary.num_classes, wanted.num_classes),
    )
    for title, found, published in sizes:
        if found != published:
            raise ValueError(expected(f"{title} of {name}", found, str(published)))
    if wanted.balanced and len({*train}) + len({*test}) > 2:
        raise ValueError(f"the classes of {name} differ in size, expected equal sizes")


def _class_counts(y: Tensor, num_classes: int) -> list[int]:
    counts: list[int] = np.bincount(y.numpy(), minlength=num_classes).tolist()
    return counts
