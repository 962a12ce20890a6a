"""Atomic file writes and folder locks."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no fcntl
    fcntl = None  # type: ignore[assignment]

DRAFT = ".draft-"
"""The prefix of drafts' names; host, process and a random part follow."""

OLD = 24 * 3600.0
"""The age in seconds at which a draft is removed, whichever process wrote it."""

UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EACCES, errno.EBADF)
"""The errors of `fsync` where it is not supported, such as for a folder on Windows."""


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move it to `path` if the block succeeds.

    If the block raises, the temporary file is removed and `path` is unchanged. The content is on
    the disk before `path` changes, so after a crash `path` is the old file or the new one. An
    existing file keeps its mode. If `path` is a symbolic link, the file that it points to is
    replaced. Temporary files left in the folder by killed processes are removed. Without `durable`
    the function does not wait for the disk: readers still see the old file or the new one, but a
    crash can lose both.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "sub", "a.txt")) as draft:
    ...         _ = draft.write_text("done")
    ...     [p.name for p in Path(folder, "sub").iterdir()]
    ['a.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))  # the file itself, not a link to it
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep_drafts(target.parent)
    draft = target.with_name(f"{DRAFT}{_host()}-{os.getpid()}-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less the umask
    mode = _mode_of(target, otherwise=draft)
    try:
        yield draft
        draft.chmod(mode)
        if durable:
            _sync(draft, os.O_RDWR)
        draft.replace(target)
        if durable:
            _sync(target.parent, os.O_RDONLY)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk is reported without a file name
        raise


def write_json(path: Path, content: object) -> None:
    """Write JSON with an indent of 1, by `atomic_write`; NaN is refused."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def user_path(path: str | Path) -> Path:
    """Return a path with `~` expanded to the home folder; raise if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} has no home folder, expected a path of a known user") from None


def _mode_of(path: Path, *, otherwise: Path) -> int:
    """Return the mode bits of a file, or of another one if it does not exist."""
    return stat.S_IMODE((path if path.is_file() else otherwise).stat().st_mode)


def _sync(path: Path, flags: int) -> None:
    """Wait until a file or folder is on the disk, on systems that can."""
    try:
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def sweep_drafts(folder: Path) -> None:
    """Remove drafts whose process on this host has ended, and drafts that are a day old."""
    with suppress(OSError):  # a folder that cannot be listed can still be written to
        for path in folder.glob(f"{DRAFT}*"):
            with suppress(OSError):  # removed by another process
                if _abandoned(path.name) or time.time() - path.stat().st_mtime > OLD:
                    path.unlink()


def _abandoned(name: str) -> bool:
    """Whether the process that wrote a draft is known to have ended."""
    host, _, rest = name.removeprefix(DRAFT).partition("-")
    pid = rest.partition("-")[0]
    if host != _host() or not pid.isdecimal() or os.name == "nt":  # Windows has no signal 0
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # a process of another user
        return False
    return False


def _host() -> str:
    """Return eight hex digits for this host: folders can be shared between hosts."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; other processes wait for it.

    No effect on systems and file systems without locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # releases the lock


@contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Hold a lock file with the id of this process; raise a `BlockingIOError` if another one does.

    The lock is released when the process ends, for whatever reason. No effect on systems and file
    systems without locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take_lock(handle, path)
        os.ftruncate(handle, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(handle, f"process {os.getpid()} on {platform.node()} since {since}\n".encode())
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # releases the lock


def _take_lock(handle: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        raise BlockingIOError(f"{path.parent} is in use by {holder}") from None
    except OSError:  # some network file systems have no locks
        return


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock file, as `only_process` does.

    False on systems and file systems without locks.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_process(path := Path(folder, "lock")):
    ...     is_held(path), is_held(Path(folder, "other"))
    (True, False)
    """
    if fcntl is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
    except BlockingIOError:
        return True
    except OSError:  # there is no file, or some network file systems have no locks
        return False
    return False
