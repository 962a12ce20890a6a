"""One file from the network: tried again, taken up where it broke off, verified by its md5."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dualcba.data.disk import space_for
from dualcba.data.download.published import Remote

CHUNK = 1 << 20
WAIT = 1.0  # seconds before the first new try; doubles with each failure in a row
LONGEST_WAIT = 30.0
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}

Tell = Callable[[int, int | None], object]
"""Told how much of how much is done."""


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
