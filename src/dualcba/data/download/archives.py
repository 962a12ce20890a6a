"""Archives unpacked: all of it or nothing, and nothing outside of its folder."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import IO

from dualcba.data.disk import space_for
from dualcba.data.download.remote_file import CHUNK, Tell

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError,
           UnicodeError)  # fmt: skip


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
