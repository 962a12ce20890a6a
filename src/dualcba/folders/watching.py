"""The files of a folder that grows: which are new, and which are still being written."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dualcba.data.readers.folder import is_ignored

Mark = tuple[int, int, int]
"""Size, time of the last change of the content, and of the file: differs if a file has changed."""


@dataclass(frozen=True)
class File:
    """A file below a class folder; `path` is relative to the root, with forward slashes."""

    path: str
    mark: Mark

    @property
    def label(self) -> str:
        """The name of the class: that of the folder directly below the root."""
        return self.path.partition("/")[0]

    @property
    def order(self) -> tuple[int, str]:
        """Files are learnt in the order of their times, then of their paths."""
        return self.mark[1], self.path


def mark_of(path: Path) -> Mark:
    """Return what changes with a file; raise an OSError if it is gone or no ordinary file."""
    return _mark(path.stat(), path)


def _mark(found: os.stat_result, path: Path) -> Mark:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not an ordinary file")
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class Look:
    """What one look at the folder has found."""

    settled: list[File]
    """New or changed files that can be read, in the order in which they are learnt."""

    unsettled: int
    """The number of files that have changed a moment ago."""

    loose: int
    """The number of files outside of class folders."""


class Watcher:
    """Looks for new files below the class folders of a root.

    Parameters
    ----------
    root
        Contains a folder per class. What is in folders below it belongs to the class.
    settle
        Seconds that a file must be unchanged. It is if its times say so, or if it is the same as in
        a look that long ago: clocks of other machines may be ahead.
    """

    def __init__(self, root: Path, settle: float) -> None:
        self.root, self.settle = root, settle
        self._first: dict[str, tuple[Mark, float]] = {}

    def look(self, known: Mapping[str, Mark]) -> Look:
        """Return the files that are not in `known` with the same mark."""
        found, loose = self._files()
        new = [file for file in found if known.get(file.path) != file.mark]
        now = time.monotonic()
        self._first = {file.path: self._since(file, now) for file in new}
        settled = [file for file in new if self._is_settled(file, now)]
        settled.sort(key=lambda file: file.order)
        return Look(settled, len(new) - len(settled), loose)

    def _since(self, file: File, now: float) -> tuple[Mark, float]:
        before = self._first.get(file.path)
        return before if before and before[0] == file.mark else (file.mark, now)

    def _is_settled(self, file: File, now: float) -> bool:
        changed = max(file.mark[1], file.mark[2]) / 1e9
        seen_for = now - self._first[file.path][1]
        return time.time() - changed >= self.settle or seen_for >= self.settle

    def _files(self) -> tuple[list[File], int]:
        """Return the files of all classes, and the number of those of no class."""
        found: list[File] = []
        loose = 0
        for entry in _entries(self.root):
            if entry.is_dir():
                found += _below(entry.path, entry.name)
            else:
                loose += 1
        return found, loose


def _below(folder: str, path: str) -> Iterator[File]:
    """Yield the files below a folder; links to folders inside a class are left out."""
    for entry in _entries(folder):
        inner = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, inner)
        else:
            with suppress(OSError):  # gone meanwhile, or no ordinary file
                yield File(inner, _mark(entry.stat(), Path(entry.path)))


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, without hidden files; nothing if it is gone meanwhile."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry in found if not is_ignored(entry.name)]
    except OSError:
        return []
