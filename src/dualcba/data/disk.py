"""File locks between processes, and a readable error when a disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from dualcba.data.progress import progress_enabled

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None  # type: ignore[assignment]

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def no_follow(path: str, flags: int) -> int:
    """An `opener` for `open` that does not follow symbolic links."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)  # Windows has no such flag


@contextmanager
def file_lock(path: Path, show: bool | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; wait while another process holds it.

    The lock is released when the process ends, even if it is killed. A message is printed before
    waiting if `show` is True, or if it is None and stderr is a terminal.
    """
    with open(path, "a", opener=no_follow) as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress_enabled(show):
                    Console(stderr=True).print(
                        f"waiting for another process that holds {path}", markup=False
                    )
                fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Replace the error of a full disk by a one-line error that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no space left on the disk while writing {path}") from None
