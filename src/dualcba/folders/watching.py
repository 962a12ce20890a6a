"""Find new files in a growing folder, except those that are still being written."""

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
"""Size, mtime and ctime, which differ if a file has changed."""


@dataclass(frozen=True)
class File:
    """A file below a class folder; `path` is relative to the root, with forward slashes."""

    path: str
    mark: Mark

    @property
    def label(self) -> str:
        """The class: the name of the folder directly below the root."""
        return self.path.partition("/")[0]

    @property
    def order(self) -> tuple[int, str]:
        """The sort key of the order of learning: modification time, then path."""
        return self.mark[1], self.path


def mark_of(path: Path) -> Mark:
    """Return the mark of a file; raise an OSError if it is missing or not a regular file."""
    return _mark(path.stat(), path)


def _mark(found: os.stat_result, path: Path) -> Mark:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file")
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class Look:
    """The result of one scan of the folder."""

    settled: list[File]
    """New or changed files, in the order of learning."""

    unsettled: int
    """The number of files that changed too recently."""

    loose: int
    """The number of files outside of class folders."""


class Watcher:
    """Looks for new files below the class folders of a root.

    Parameters
    ----------
    root
        A folder with a subfolder per class. Files in deeper folders belong to the class, too.
    settle
        Seconds for which a file must be unchanged: by its times, or, since clocks of other machines
        may be ahead, by comparison with a scan that long ago.
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
        """Return the files of all classes, and the number of files outside of class folders."""
        found: list[File] = []
        loose = 0
        for entry in _entries(self.root):
            if entry.is_dir():
                found += _below(entry.path, entry.name)
            else:
                loose += 1
        return found, loose


def _below(folder: str, path: str) -> Iterator[File]:
    """Yield the files below a folder; does not follow links to folders."""
    for entry in _entries(folder):
        inner = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, inner)
        else:
            with suppress(OSError):  # removed meanwhile, or not a regular file
                yield File(inner, _mark(entry.stat(), Path(entry.path)))


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder without hidden ones; empty if it was removed meanwhile."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry in found if not is_ignored(entry.name)]
    except OSError:
        return []
