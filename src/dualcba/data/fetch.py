"""Fetch published datasets from their official addresses: download, verify, unpack, check."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PureWindowsPath
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

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

from dualcba.errors import expected, unknown

try:
    import fcntl
except ImportError:  # not a Unix: no locks
    fcntl = None  # type: ignore[assignment]

CHUNK = 1 << 20
WAIT = 1.0  # seconds before the first new try; doubles with each failure in a row
LONGEST_WAIT = 30.0
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError,
           UnicodeError)  # fmt: skip

Tell = Callable[[int, int | None], object]
"""Told how much of how much is done."""


@dataclass(frozen=True)
class Remote:
    """One published file: its name, its md5 and where it lies, tried in this order."""

    name: str
    md5: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The files of a dataset and the folder they make; `holds` is empty if nothing is unpacked."""

    folder: str
    files: tuple[Remote, ...]
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a dataset is known to hold; `balanced`: every class has as many samples."""

    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    balanced: bool


def _at(name: str, md5: str, *bases: str) -> Remote:
    return Remote(name, md5, tuple(base + name for base in bases))


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TINY = "http://cs231n.stanford.edu/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "cifar-10-batches-py",
        (_at("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", _CIFAR),),
        (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
    ),
    "cifar100": Source(
        "cifar-100-python",
        (_at("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", _CIFAR),),
        ("train", "test"),
    ),
    "tiny-imagenet": Source(
        "tiny-imagenet-200",
        (_at("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", _TINY),),
        ("wnids.txt", "train", "val/val_annotations.txt"),
    ),
    "mnist": Source(
        "mnist",
        (
            _at("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", *_MNIST),
            _at("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", *_MNIST),
            _at("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", *_MNIST),
            _at("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", *_MNIST),
        ),
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        (
            _at("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", *_FASHION),
            _at("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", *_FASHION),
            _at("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", *_FASHION),
            _at("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", *_FASHION),
        ),
    ),
}
"""What can be fetched, by name."""

FACTS: dict[str, Facts] = {
    "digits": Facts(1442, 355, (1, 8, 8), 10, balanced=False),
    "cifar10": Facts(50_000, 10_000, (3, 32, 32), 10, balanced=True),
    "cifar100": Facts(50_000, 10_000, (3, 32, 32), 100, balanced=True),
    "tiny-imagenet": Facts(100_000, 10_000, (3, 64, 64), 200, balanced=True),
    "mnist": Facts(60_000, 10_000, (1, 28, 28), 10, balanced=False),
    "fashion-mnist": Facts(60_000, 10_000, (1, 28, 28), 10, balanced=True),
}
"""What `check` compares with, by name."""


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


# ── Progress, locks, space ────────────────────────────────────────────────────────────────────


def visible(show: bool | None) -> bool:
    """Whether to show progress: as told, else where stderr is a terminal."""
    return sys.stderr.isatty() if show is None else show


def _bars(show: bool | None) -> Progress:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), disable=not visible(show))


def _bar(bars: Progress, title: str) -> Tell:
    task = bars.add_task(title, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def locked(path: Path, show: bool | None = None) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever has it; it ends with its process."""
    with path.open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if visible(show):
                    Console(stderr=True).print(f"waiting for another process that holds {path}")
                fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def space_for(path: Path) -> Iterator[None]:
    """Turn a full disk into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise OSError(f"no space left on the disk of {path}, expected room for all of it") from None


# ── Download ──────────────────────────────────────────────────────────────────────────────────


class _TryAgainError(Exception):
    """Worth another try."""


class _RefusedError(Exception):
    """Not worth another try at this address."""


def digest(path: Path) -> str:
    """The md5 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def verified(path: Path, md5: str) -> bool:
    """Whether the file is there with this content."""
    return path.is_file() and digest(path) == md5


def download(
    remote: Remote,
    target: Path,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    tell: Tell = lambda done, total: None,
) -> Path:
    """Bring one file to `target`; what is there and right is kept, what is there in part goes on.

    The bytes arrive in `target` with `.part` at its end, and the name is given when the md5 is
    right, so a file of the name `target` is always whole.
    """
    if verified(target, remote.md5):
        return target
    part = target.with_name(target.name + ".part")
    problems = []
    for address in remote.addresses:
        try:
            if not verified(part, remote.md5):
                _persist(address, part, remote.md5, tries, timeout, tell)
            os.replace(part, target)
            return target
        except _RefusedError as problem:
            problems.append(str(problem))
    raise OSError(f"cannot fetch {target.name}: {'; '.join(problems)}")


def _persist(address: str, part: Path, md5: str, tries: int, timeout: float, tell: Tell) -> None:
    """Pull until the part is whole; failures count until a new byte arrives."""
    failures, most = 0, _size(part)
    while True:
        try:
            return _pull(address, part, md5, timeout, tell)
        except _TryAgainError as problem:
            failures = 0 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures >= tries:
                raise _RefusedError(f"{problem} (tried {tries} times)") from problem
            time.sleep(min(WAIT * 2**failures, LONGEST_WAIT))


def _pull(address: str, part: Path, md5: str, timeout: float, tell: Tell) -> None:
    """One request, for what is missing; checks the whole when the answer ends."""
    with _open(address, part, timeout) as response:
        start = _start(response, _size(part))
        total = None if response.length is None else start + response.length
        _check_room(part, (total or start) - _size(part))
        done = start
        with space_for(part), part.open("ab" if start else "wb") as file:
            for block in _blocks(response, address):
                file.write(block)
                done += len(block)
                tell(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _TryAgainError(f"{address} ended after {done} of {total} bytes")
    if (got := digest(part)) != md5:
        part.unlink()
        problem = f"the file from {address} has the md5 {got}, expected {md5}"
        raise _TryAgainError(problem) if start else _RefusedError(problem)


def _open(address: str, part: Path, timeout: float) -> HTTPResponse:
    start = _size(part)
    headers = {"User-Agent": "dualcba"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(address, headers=headers), timeout=timeout)
        return response
    except HTTPError as error:
        problem = f"{address} answered {error.code} {error.reason}, expected the file"
        if error.code == 416:  # nothing after what we have, and what we have is not right
            part.unlink(missing_ok=True)
            raise _TryAgainError(problem) from None
        raise (_TryAgainError if error.code in TRY_AGAIN else _RefusedError)(problem) from None
    except (OSError, HTTPException) as error:
        raise _TryAgainError(f"{address} cannot be reached: {error}") from None


def _start(response: HTTPResponse, size: int) -> int:
    """Where the answer's first byte belongs; 0 from a server that does not know ranges."""
    if response.status != 206:
        return 0
    given = response.headers.get("Content-Range", "")
    if not given.startswith(f"bytes {size}-"):
        raise _RefusedError(
            f"{response.url} sent the range {given!r}, expected one from byte {size}"
        )
    return size


def _blocks(response: HTTPResponse, address: str) -> Iterator[bytes]:
    """What arrives, as it arrives; network trouble, and only that, becomes `_TryAgainError`."""
    while True:
        try:
            block = response.read1(CHUNK)
        except (OSError, HTTPException) as error:
            raise _TryAgainError(f"{address} broke off: {error}") from None
        if not block:
            return
        yield block


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise OSError(f"no space left for {part}: {needed} bytes needed, {free} free")


# ── Unpack ────────────────────────────────────────────────────────────────────────────────────


def unpack(archive: Path, folder: Path, tell: Tell = lambda done, total: None) -> None:
    """Unpack the archive's folder of the name of `folder` there: all of it, or nothing."""
    temporary = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with space_for(folder), _readable(archive):
            for name, file, done in (_unzip if archive.suffix == ".zip" else _untar)(archive):
                _write(temporary / _inside(name, archive), file)
                tell(done, archive.stat().st_size)
        if not (temporary / folder.name).is_dir():
            raise ValueError(f"{archive} holds no folder {folder.name}, expected it there")
        os.rename(temporary / folder.name, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into one line that names it."""
    try:
        yield
    except (*DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk; a damaged zip seeks before its start: EINVAL
        raise ValueError(f"{archive} cannot be unpacked: {error}") from error


def _write(path: Path, file: IO[bytes] | None) -> None:
    (path if file is None else path.parent).mkdir(parents=True, exist_ok=True)
    if file is not None:
        with file, path.open("wb") as out:
            shutil.copyfileobj(file, out, CHUNK)


def _inside(name: str, archive: Path) -> str:
    """The name of a member, refused if it leads out of the folder it is unpacked to.

    >>> _inside("a/b.txt", Path("x.zip"))
    'a/b.txt'
    >>> _inside("a/../../b.txt", Path("x.zip"))
    Traceback (most recent call last):
    ...
    ValueError: x.zip holds 'a/../../b.txt', expected only names inside its folder
    """
    path = PureWindowsPath(name)  # knows both separators, and drives
    if path.drive or path.root or ".." in path.parts:
        raise ValueError(f"{archive} holds {name!r}, expected only names inside its folder")
    return name


Members = Iterator[tuple[str, IO[bytes] | None, int]]
"""Of an archive: name, content (none for a folder) and how far into the archive it is."""


def _untar(archive: Path) -> Members:
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive} holds {member.name!r}, neither a file nor a folder")
            yield member.name, tar.extractfile(member) if member.isfile() else None, raw.tell()


def _unzip(archive: Path) -> Members:
    done = 0
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            kind = member.external_attr >> 28  # of the Unix mode: 8 file, 4 folder, 10 link
            if kind not in (0, 4, 8):
                raise ValueError(
                    f"{archive} holds {member.filename!r}, neither a file nor a folder"
                )
            done += member.compress_size
            yield member.filename, None if member.is_dir() else members.open(member), done


# ── Check ─────────────────────────────────────────────────────────────────────────────────────


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
