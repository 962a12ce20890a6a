"""What several processes and a full disk ask for: locks, one clear line, progress where seen."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

try:
    import fcntl
except ImportError:  # not a Unix: no locks
    fcntl = None  # type: ignore[assignment]

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def visible(show: bool | None) -> bool:
    """Whether to show progress: as told, else where stderr is a terminal."""
    return sys.stderr.isatty() if show is None else show


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
