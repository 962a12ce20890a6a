"""Download one file: retry after errors, resume a partial download, verify the checksum."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dualcba.data.disk import explain_full_disk, no_follow
from dualcba.data.download.published import RemoteFile
from dualcba.data.progress import ProgressCallback, ignore_progress

CHUNK = 1 << 20  # bytes read at a time
WAIT = 1.0  # seconds; doubled after each failure in a row
MAX_WAIT = 30.0
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class _RetryableError(Exception):
    """A download error after which the same URL may work."""


class _PermanentError(Exception):
    """A download error after which the URL is not tried again."""


def is_intact(path: Path, remote: RemoteFile) -> bool:
    """Return whether the file exists and has the right size and checksum."""
    if not path.is_file() or remote.size not in (None, _size(path)):
        return False
    algorithm, wanted = remote.checksum
    return _checksum_of(path, algorithm) == wanted


def _checksum_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        new = partial(hashlib.new, algorithm, usedforsecurity=False)
        return hashlib.file_digest(file, new).hexdigest()


def download(
    remote: RemoteFile,
    target: Path,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    on_progress: ProgressCallback = ignore_progress,
) -> Path:
    """Download a file to `target` and return `target`.

    A file with the right checksum is not downloaded again. The data are written to `target` with
    the suffix `.part`, which is renamed once the checksum is right: a file named `target` is always
    complete. A `.part` file from an earlier call is resumed. Symbolic links are not followed, and
    no more is read than the known size of the file.

    Parameters
    ----------
    remote
        The file, its checksum and its URLs, which are tried in order.
    target
        The path to write.
    tries
        Failures in a row without new data after which a URL is given up.
    timeout
        Seconds to wait for a response, and for each part of it.
    on_progress
        Called with the number of bytes downloaded and the total.
    """
    part = target.with_name(target.name + ".part")
    for path in (target, part):
        if path.is_symlink():
            raise OSError(f"{path} is a symbolic link, expected a file or nothing")
    if is_intact(target, remote):
        return target
    if remote.size is not None and _size(part) > remote.size:
        part.unlink()
    problems = []
    for url in remote.urls:
        try:
            if not is_intact(part, remote):
                _download_with_retries(url, part, remote, tries, timeout, on_progress)
            os.replace(part, target)
            return target
        except _PermanentError as problem:
            problems.append(str(problem))
    raise OSError(f"cannot download {target.name}: {'; '.join(problems)}")


def _download_with_retries(
    url: str,
    part: Path,
    remote: RemoteFile,
    tries: int,
    timeout: float,
    on_progress: ProgressCallback,
) -> None:
    """Request the file until it is complete; new data reset the count of failures."""
    failures, largest = 0, _size(part)
    while True:
        try:
            return _download_once(url, part, remote, timeout, on_progress)
        except _RetryableError as problem:
            failures = 0 if _size(part) > largest else failures + 1
            largest = max(largest, _size(part))
            if failures >= tries:
                raise _PermanentError(f"{problem} (tried {tries} times)") from problem
            time.sleep(min(WAIT * 2**failures, MAX_WAIT))


def _download_once(
    url: str, part: Path, remote: RemoteFile, timeout: float, on_progress: ProgressCallback
) -> None:
    """Request the missing bytes, append them to `part`, and verify the checksum."""
    with _open(url, part, timeout) as response:
        start = _first_byte(response, _size(part))
        total = remote.size if response.length is None else start + response.length
        _check_size(url, part, total, remote.size)
        _check_free_space(part, (total or start) - _size(part))
        done = start
        with explain_full_disk(part), _open_part(part, resumed=start > 0) as file:
            for block in _blocks(response, url):
                done += len(block)
                if remote.size is not None and done > remote.size:
                    break
                file.write(block)
                on_progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _RetryableError(f"{url} ended after {done} of {total} bytes")
    _check_size(url, part, done, remote.size)
    _check_checksum(url, part, remote, resumed=start > 0)


def _check_size(url: str, part: Path, sent: int | None, size: int | None) -> None:
    """Delete `part` and raise an error if a server sends other than the known number of bytes."""
    if sent is not None and size is not None and sent != size:
        part.unlink(missing_ok=True)
        less_or_more = "fewer" if sent < size else "more"
        raise _PermanentError(f"{url} sends {less_or_more} bytes than the size, expected {size}")


def _open_part(part: Path, *, resumed: bool) -> BinaryIO:
    """Open a file to append to, or a new one; never through a symbolic link."""
    if resumed:
        return open(part, "ab", opener=no_follow)
    part.unlink(missing_ok=True)
    return part.open("xb")


def _check_checksum(url: str, part: Path, remote: RemoteFile, *, resumed: bool) -> None:
    """Delete a file with a wrong checksum and raise; only a resumed download can be retried."""
    algorithm, wanted = remote.checksum
    found = _checksum_of(part, algorithm)
    if found == wanted:
        return
    part.unlink()
    problem = f"the file from {url} has the {algorithm} {found}, expected {wanted}"
    raise _RetryableError(problem) if resumed else _PermanentError(problem)


def _open(url: str, part: Path, timeout: float) -> HTTPResponse:
    start = _size(part)
    headers = {"User-Agent": "dualcba"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
        return response
    except HTTPError as error:
        problem = f"{url} answered {error.code} {error.reason}, expected the file"
        if error.code == 416:  # range not satisfiable: `part` is at least as long as the file
            part.unlink(missing_ok=True)
            raise _RetryableError(problem) from None
        kind = _RetryableError if error.code in RETRY_STATUS else _PermanentError
        raise kind(problem) from None
    except (OSError, HTTPException) as error:
        raise _RetryableError(f"{url} cannot be reached: {error}") from None


def _first_byte(response: HTTPResponse, size: int) -> int:
    """Return the position of the response's first byte; 0 if the server ignored the range."""
    if response.status != 206:
        return 0
    given = response.headers.get("Content-Range", "")
    if not given.startswith(f"bytes {size}-"):
        raise _PermanentError(
            f"{response.url} sent the range {given!r}, expected one from byte {size}"
        )
    return size


def _blocks(response: HTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the response in blocks; network errors become `_RetryableError`."""
    while True:
        try:
            block = response.read1(CHUNK)
        except (OSError, HTTPException) as error:
            raise _RetryableError(f"connection to {url} lost: {error}") from None
        if not block:
            return
        yield block


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_free_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise OSError(f"no space left for {part}: {needed} bytes needed, {free} free")
