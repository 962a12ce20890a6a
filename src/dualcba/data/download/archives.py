"""Unpack archives completely or not at all, and never outside the target folder."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import IO

from dualcba.data.disk import explain_full_disk
from dualcba.data.download.remote_file import CHUNK
from dualcba.data.progress import ProgressCallback, ignore_progress
from dualcba.errors import reason

Members = Iterator[tuple[str, IO[bytes] | None, int]]
"""Name and content (None for a folder) of each member, and the archive bytes read so far."""


def unpack(archive: Path, folder: Path, on_progress: ProgressCallback = ignore_progress) -> None:
    """Unpack the folder `folder.name` of a zip or tar archive to `folder`.

    The files are written to a temporary folder, which is renamed when all of them are complete.
    `on_progress` is called with the archive bytes read and the size of the archive.
    """
    temporary = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    try:
        with explain_full_disk(folder), _explain_damage(archive):
            temporary.mkdir(parents=True)  # fails if there is a symbolic link
            for name, content, done in members(archive):
                _write_member(temporary / _checked_name(name, archive), content)
                on_progress(done, archive.stat().st_size)
        if not (temporary / folder.name).is_dir():
            raise ValueError(f"{archive} holds no folder {folder.name}, expected one")
        os.rename(temporary / folder.name, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _explain_damage(archive: Path) -> Iterator[None]:
    """Replace the errors of a damaged archive by a one-line `ValueError` that names it."""
    try:
        yield
    except Exception as error:  # a damaged archive may raise anything
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # a disk error; EINVAL comes from a damaged zip, which seeks before its start
        if isinstance(error, ValueError) and str(error).startswith(str(archive)):
            raise  # the archive is readable, but not accepted
        raise ValueError(f"{archive} cannot be unpacked: {reason(error)}") from error


def _write_member(path: Path, content: IO[bytes] | None) -> None:
    (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
    if content is not None:
        with content, path.open("wb") as out:
            shutil.copyfileobj(content, out, CHUNK)


def _checked_name(name: str, archive: Path) -> str:
    """Return the name of a member, or raise if it points outside the target folder.

    >>> _checked_name("a/b.txt", Path("x.zip"))
    'a/b.txt'
    >>> _checked_name("a/../../b.txt", Path("x.zip"))
    Traceback (most recent call last):
    ...
    ValueError: x.zip holds 'a/../../b.txt', expected only names inside its folder
    """
    path = PureWindowsPath(name)  # recognises drives and both kinds of separator
    if path.drive or path.root or ".." in path.parts:
        raise ValueError(f"{archive} holds {name!r}, expected only names inside its folder")
    return name


def _tar_members(archive: Path) -> Members:
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()) or member.issparse():
                raise _special_file(archive, member.name)
            yield member.name, tar.extractfile(member) if member.isfile() else None, raw.tell()


def _zip_members(archive: Path) -> Members:
    done = 0
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            kind = member.external_attr >> 28  # file type of the Unix mode: 8 file, 4 folder
            if kind not in (0, 4, 8):
                raise _special_file(archive, member.filename)
            done += member.compress_size
            yield member.filename, None if member.is_dir() else members.open(member), done


def _special_file(archive: Path, name: str) -> ValueError:
    return ValueError(f"{archive} holds {name!r}, which is neither a file nor a folder")
