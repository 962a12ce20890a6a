"""Downloads from a local server that fails on request; damaged and malicious archives."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualcba.data.disk import file_lock
from dualcba.data.download.archives import unpack
from dualcba.data.download.fetch import check, fetch
from dualcba.data.download.published import (
    EXPECTED_CONTENTS,
    PUBLISHED_DATASETS,
    ExpectedContents,
    PublishedDataset,
    RemoteFile,
)
from dualcba.data.download.remote_file import download

CONTENT = np.random.default_rng(0).bytes(300_000)
NAME = "file.bin"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; each request fails as the next entry of `failures` says, if there is one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {NAME: CONTENT}
        self.failures: list[tuple[str, int]] = []
        self.ranges: list[str | None] = []
        self.supports_ranges = True
        self.sends_length = True
        self.stop = threading.Event()

    def address(self, name: str = NAME) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def remote(self, content: bytes = CONTENT) -> RemoteFile:
        return RemoteFile(NAME, md5(content), (self.address(),))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        given = self.headers.get("Range")
        server.ranges.append(given)
        kind, number = server.failures.pop(0) if server.failures else ("whole", 0)
        content = server.files.get(self.path[1:])
        if kind == "status" or content is None:
            self.send_error(number if kind == "status" else 404)
            return
        start = int(given[6:-1]) if given and server.supports_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.head(start, len(content))
        self.body(kind, number, content[start:])

    def head(self, start: int, total: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if self.server.sends_length:
            self.send_header("Content-Length", str(total - start))
        self.end_headers()

    def body(self, kind: str, number: int, content: bytes) -> None:
        if kind == "slow":  # `number` pieces, with a pause before each
            size = len(content) // number + 1
            for k in range(number):
                time.sleep(0.05)
                self.wfile.write(content[k * size : (k + 1) * size])
            return
        self.wfile.write(content if kind == "whole" else content[:number])
        if kind == "stall":
            self.server.stop.wait(10)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(sys.modules["dualcba.data.download.remote_file"], "WAIT", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / NAME


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# ── Download ──────────────────────────────────────────────────────────────────────────────────


def test_whole(server: Server, target: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    download(server.remote(), target, on_progress=lambda done, total: calls.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert listing(target.parent) == [NAME]
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert calls == sorted(calls)


def test_never_twice(server: Server, target: Path) -> None:
    download(server.remote(), target)
    download(server.remote(), target)
    assert len(server.ranges) == 1


def test_a_wrong_file_of_the_name_is_replaced(server: Server, target: Path) -> None:
    target.write_bytes(CONTENT[:-1] + b"?")
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT


def test_cut_off_and_resumed(server: Server, target: Path) -> None:
    server.failures = [("cut", 100_000), ("cut", 50_000)]
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_resumed_by_another_call(server: Server, target: Path) -> None:
    target.with_name(NAME + ".part").write_bytes(CONTENT[:1234])
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1234-"]


def test_a_whole_part_needs_no_request(server: Server, target: Path) -> None:
    target.with_name(NAME + ".part").write_bytes(CONTENT)
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == []


def test_cut_off_more_often_than_tries(server: Server, target: Path) -> None:
    server.failures = [("cut", 10_000)] * 20
    download(server.remote(), target, tries=2)
    assert target.read_bytes() == CONTENT


def test_cut_off_without_a_length(server: Server, target: Path) -> None:
    """Only the checksum shows that the file is incomplete."""
    server.sends_length = False
    server.failures = [("cut", 100_000)]
    with pytest.raises(OSError, match="md5"):
        download(server.remote(), target)
    assert listing(target.parent) == []


def test_server_without_ranges(server: Server, target: Path) -> None:
    server.supports_ranges = False
    server.failures = [("cut", 100_000)]
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


def test_server_without_ranges_that_always_cuts_off(server: Server, target: Path) -> None:
    server.supports_ranges = False
    server.failures = [("cut", 100_000)] * 50
    with pytest.raises(OSError, match=r"ended after 100000 of 300000 bytes \(tried 3 times\)"):
        download(server.remote(), target, tries=3)
    assert len(server.ranges) == 4
    assert not target.exists()


@pytest.mark.parametrize("junk", [b"?" * 5000, b"?" * len(CONTENT), b"?" * (len(CONTENT) + 9)])
def test_a_wrong_part_is_thrown_away(server: Server, target: Path, junk: bytes) -> None:
    target.with_name(NAME + ".part").write_bytes(junk)
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(junk)}-", None]


def test_corrupted(server: Server, target: Path) -> None:
    server.files[NAME] = b"?" + CONTENT[1:]
    with pytest.raises(OSError, match="md5") as caught:
        download(server.remote(), target)
    line = str(caught.value)
    assert server.address() in line
    assert md5(CONTENT) in line
    assert "\n" not in line
    assert listing(target.parent) == []
    assert len(server.ranges) == 1


@pytest.mark.parametrize("status", [403, 404, 410])
def test_refused_at_once(server: Server, target: Path, status: int) -> None:
    server.failures = [("status", status)]
    with pytest.raises(OSError, match=f"answered {status}") as caught:
        download(server.remote(), target)
    assert server.address() in str(caught.value)
    assert len(server.ranges) == 1
    assert listing(target.parent) == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: Server, target: Path, status: int) -> None:
    server.failures = [("status", status)] * 2
    download(server.remote(), target)
    assert target.read_bytes() == CONTENT


def test_a_server_that_stays_busy(server: Server, target: Path) -> None:
    server.failures = [("status", 503)] * 9
    with pytest.raises(OSError, match=r"503 .*\(tried 4 times\)"):
        download(server.remote(), target, tries=4)
    assert len(server.ranges) == 4


def test_waits_double(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(sys.modules["dualcba.data.download.remote_file"], "WAIT", 4.0)
    monkeypatch.setattr(time, "sleep", waits.append)
    server.failures = [("status", 503)] * 5
    download(server.remote(), target, tries=9)
    assert waits == [8.0, 16.0, 30.0, 30.0, 30.0]


def test_slow(server: Server, target: Path) -> None:
    """The download takes longer than the timeout, but no single piece does."""
    server.failures = [("slow", 12)]
    download(server.remote(), target, timeout=0.4)
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == 1


def test_stalled_and_resumed(server: Server, target: Path) -> None:
    server.failures = [("stall", 70_000)]
    download(server.remote(), target, timeout=0.3)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=70000-"]


def test_no_server(target: Path) -> None:
    remote = RemoteFile(NAME, md5(CONTENT), ("http://127.0.0.1:9/file.bin",))
    with pytest.raises(OSError, match="cannot be reached") as caught:
        download(remote, target, tries=1)
    assert "\n" not in str(caught.value)


def test_the_next_address(server: Server, target: Path) -> None:
    remote = RemoteFile(NAME, md5(CONTENT), (server.address("nothing"), server.address()))
    download(remote, target)
    assert target.read_bytes() == CONTENT


def test_every_address_is_named(server: Server, target: Path) -> None:
    addresses = (server.address("one"), server.address("two"))
    with pytest.raises(OSError, match=r"one answered 404 .*two answered 404"):
        download(RemoteFile(NAME, md5(CONTENT), addresses), target)


def test_a_range_from_elsewhere_is_refused(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.with_name(NAME + ".part").write_bytes(CONTENT[:1000])
    original = Handler.head
    monkeypatch.setattr(Handler, "head", lambda self, start, total: original(self, 7, total))
    with pytest.raises(OSError, match="expected one from byte 1000"):
        download(server.remote(), target)


# ── A full disk ───────────────────────────────────────────────────────────────────────────────


class Full(io.BytesIO):
    def write(self, *_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_disk_full(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Full() if mode in ("wb", "ab") else original(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="no space left") as caught:
        download(server.remote(), target)
    assert "\n" not in str(caught.value)
    assert len(server.ranges) == 1
    assert not target.exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_other_trouble_with_the_disk_is_not_retried(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def broken(*_: Any) -> None:
        raise OSError(code, "trouble", str(target))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="trouble"):
        download(server.remote(), target)
    assert len(server.ranges) == 1
    assert not target.exists()


def test_too_little_room_is_known_beforehand(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(target.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="300000 bytes needed, 1000 free"):
        download(server.remote(), target)
    assert listing(target.parent) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up(server: Server, small_disk: Path) -> None:
    content = CONTENT * 6
    server.files[NAME] = content
    server.sends_length = False  # so that it cannot be known beforehand
    with pytest.raises(OSError, match="no space left") as caught:
        download(server.remote(content), small_disk / NAME)
    assert "\n" not in str(caught.value)
    assert listing(small_disk) in ([], [NAME + ".part"])


def test_a_disk_that_fills_up_while_unpacking(small_disk: Path, tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"toy/big": CONTENT * 6})
    with pytest.raises(OSError, match="no space left"):
        unpack(archive, small_disk / "toy")
    assert listing(small_disk) == []


# ── Unpack ────────────────────────────────────────────────────────────────────────────────────


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], **special: Any) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in special.items():
                setattr(info, field, value)
            out.addfile(info, io.BytesIO(content))
    return path


MAKERS: dict[str, Callable[..., Path]] = {"a.zip": make_zip, "a.tar.gz": make_tar}


@pytest.mark.parametrize("name", MAKERS)
def test_unpack(tmp_path: Path, name: str) -> None:
    archive = MAKERS[name](tmp_path / name, {"toy/one": b"1", "toy/in/two": b"2"})
    calls: list[int] = []
    unpack(archive, tmp_path / "toy", lambda done, total: calls.append(done))
    assert listing(tmp_path / "toy") == ["in/two", "one"]
    assert (tmp_path / "toy" / "in" / "two").read_bytes() == b"2"
    assert len(calls) == 2


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "bad",
    ["../evil", "toy/../../evil", "/evil", "toy/..", "..\\evil", "C:\\evil", "\\\\host\\x\\y"],
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str, bad: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = MAKERS[name](inner / name, {"toy/good": b"1", bad: b"2"})
    with pytest.raises(ValueError, match="expected only names inside its folder") as caught:
        unpack(archive, inner / "toy")
    assert str(archive) in str(caught.value)
    assert listing(tmp_path) == [f"inner/{name}"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = make_tar(tmp_path / "a.tar.gz", {"toy/x": b""}, type=kind, linkname="../evil")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        unpack(archive, tmp_path / "toy")
    assert listing(tmp_path) == ["a.tar.gz"]


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        link = zipfile.ZipInfo("toy/x")
        link.external_attr = 0o120777 << 16
        out.writestr(link, "../evil")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        unpack(tmp_path / "a.zip", tmp_path / "toy")
    assert listing(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_archive(tmp_path: Path, name: str) -> None:
    archive = MAKERS[name](tmp_path / name, {"toy/x": CONTENT})
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not an archive", whole[:99] + whole[120:]):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.(zip|tar\.gz) (cannot be unpacked|holds no)"):
            unpack(archive, tmp_path / "toy")
        assert listing(tmp_path) == [name]


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"other/x": b""})
    with pytest.raises(ValueError, match="holds no folder toy"):
        unpack(archive, tmp_path / "toy")


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".toy.unpacking" / "toy"
    left.mkdir(parents=True)
    (left / "old").touch()
    unpack(make_zip(tmp_path / "a.zip", {"toy/new": b""}), tmp_path / "toy")
    assert listing(tmp_path) == ["a.zip", "toy/new"]


# ── Fetch ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PublishedDataset:
    """A dataset in an archive on the server."""
    content = make_zip(tmp_path / "toy.zip", {"toy/x": CONTENT, "toy/y": b"1"}).read_bytes()
    (tmp_path / "toy.zip").unlink()
    server.files["toy.zip"] = content
    remote = RemoteFile("toy.zip", md5(content), (server.address("toy.zip"),))
    dataset = PublishedDataset("toy", (remote,), ("x", "y"))
    monkeypatch.setitem(PUBLISHED_DATASETS, "toy", dataset)
    return dataset


def test_fetch(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    assert fetch("toy", root, show=False) == root / "toy"
    assert fetch("toy", str(root), show=False) == root / "toy"
    assert listing(root) == [".toy.lock", "toy.zip", "toy/x", "toy/y"]
    assert len(server.ranges) == 1


def test_fetch_unpacks_again_without_a_download(
    toy: PublishedDataset, server: Server, tmp_path: Path
) -> None:
    shutil.rmtree(fetch("toy", tmp_path, show=False))
    assert listing(fetch("toy", tmp_path, show=False)) == ["x", "y"]
    assert len(server.ranges) == 1


def test_fetch_leaves_a_folder_with_gaps_alone(toy: PublishedDataset, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "x").touch()
    with pytest.raises(ValueError, match="toy lacks y; move the folder away and fetch again"):
        fetch("toy", tmp_path, show=False)


def test_fetch_of_plain_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RemoteFile("b.bin", md5(b"b"), (server.address("b.bin"),))
    server.files["b.bin"] = b"b"
    dataset = PublishedDataset("plain", (server.remote(), other))
    monkeypatch.setitem(PUBLISHED_DATASETS, "plain", dataset)
    folder = fetch("plain", tmp_path, show=False)
    assert listing(folder) == ["b.bin", NAME]
    (folder / "b.bin").write_bytes(b"damaged")
    fetch("plain", tmp_path, show=False)
    assert (folder / "b.bin").read_bytes() == b"b"
    assert len(server.ranges) == 3


def test_fetch_shows_throughput(
    toy: PublishedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch("toy", tmp_path, show=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "toy.zip" in err
    assert "B/s" in err


def test_fetch_of_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown dataset to fetch 'cifar', did you mean 'cifar1"):
        fetch("cifar", tmp_path)
    assert listing(tmp_path) == []


SCRIPT = """
import sys
from dualcba.data.download.fetch import fetch
from dualcba.data.download.published import PUBLISHED_DATASETS, PublishedDataset, RemoteFile
address, md5, root = sys.argv[1:]
file = RemoteFile("toy.zip", md5, (address,))
PUBLISHED_DATASETS["toy"] = PublishedDataset("toy", (file,), ("x", "y"))
print(fetch("toy", root, show=False))
"""


def test_two_processes_at_once(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    server.failures = [("slow", 40)]
    (remote,) = toy.files
    command = [sys.executable, "-c", SCRIPT, remote.urls[0], remote.md5, str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
    two = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    outputs = [p.communicate(timeout=120)[0].decode().strip() for p in two]
    assert [p.returncode for p in two] == [0, 0]
    assert outputs == [str(tmp_path / "toy")] * 2
    assert len(server.ranges) == 1
    assert listing(tmp_path) == [".toy.lock", "toy.zip", "toy/x", "toy/y"]


def test_two_threads_at_once(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    server.failures = [("slow", 10)]
    threads = [threading.Thread(target=fetch, args=("toy", tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.ranges) == 1
    assert (tmp_path / "toy" / "x").read_bytes() == CONTENT


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dualcba.data.disk import file_lock\n"
        "with file_lock(Path(sys.argv[1])): os._exit(9)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    with file_lock(tmp_path / "lock"):
        pass


def test_waiting_for_a_lock_prints_a_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock"
    started = threading.Event()

    def wait() -> None:
        started.set()
        with file_lock(path, show=True):
            pass

    with file_lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        time.sleep(0.2)
    thread.join()
    assert "waiting for another process" in capfd.readouterr().err


# ── Check ─────────────────────────────────────────────────────────────────────────────────────


def cifar_archive(path: Path, count: int = 20) -> bytes:
    """CIFAR-10's archive in its layout, small."""
    rng = np.random.default_rng(0)
    files = {}
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        data = rng.integers(0, 256, (count, 3072), np.uint8)
        content = {b"data": data, b"labels": [k % 10 for k in range(count)]}
        files[f"cifar-10-batches-py/{name}"] = pickle.dumps(content, protocol=2)
    return make_tar(path, files).read_bytes()


def test_fetch_then_check(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cifar-10-python.tar.gz"
    server.files[name] = cifar_archive(tmp_path / "made.tar.gz")
    remote = RemoteFile(name, md5(server.files[name]), (server.address(name),))
    dataset = replace(PUBLISHED_DATASETS["cifar10"], files=(remote,))
    monkeypatch.setitem(PUBLISHED_DATASETS, "cifar10", dataset)
    with pytest.raises(FileNotFoundError, match="dualcba data fetch cifar10"):
        check("cifar10", tmp_path)
    fetch("cifar10", tmp_path, show=False)
    with pytest.raises(ValueError, match="training samples of cifar10 is 100, expected 50000"):
        check("cifar10", tmp_path)
    contents = ExpectedContents(100, 20, (3, 32, 32), 10, balanced=True)
    monkeypatch.setitem(EXPECTED_CONTENTS, "cifar10", contents)
    summary = check("cifar10", tmp_path)
    assert (summary.num_train, summary.num_test) == (100, 20)
    assert summary.train_per_class == (10, 10)
    assert str(summary) == (
        "cifar10: 100 training and 20 test samples of 3×32×32, 10 classes with 10 training samples "
        "each, as published"
    )


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        (
            ExpectedContents(1442, 300, (1, 8, 8), 10, False),
            "number of test samples of digits is 355",
        ),
        (
            ExpectedContents(1442, 355, (1, 9, 9), 10, False),
            r"shape of a sample of digits is \(1, 8, 8\)",
        ),
        (
            ExpectedContents(1442, 355, (1, 8, 8), 11, False),
            "number of classes of digits is 10, expected 11",
        ),
        (ExpectedContents(1442, 355, (1, 8, 8), 10, True), "classes of digits differ in size"),
    ],
)
def test_check_names_what_differs(
    monkeypatch: pytest.MonkeyPatch, contents: ExpectedContents, line: str
) -> None:
    monkeypatch.setitem(EXPECTED_CONTENTS, "digits", contents)
    with pytest.raises(ValueError, match=line):
        check("digits")


def test_check_of_a_users_own(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    y = np.array([0, 0, 0, 1, 1])
    np.savez(path, x=np.random.default_rng(0).normal(size=(5, 4)), y=y)
    summary = check(str(path))
    assert (summary.num_train, summary.num_test, summary.input_shape) == (3, 2, (4,))
    assert not summary.as_published
    assert str(summary).endswith("2 classes with 1 to 2 training samples each")
    np.savez(path, x=np.random.default_rng(0).normal(size=(5, 4)), y=y * 2)
    with pytest.raises(ValueError, match="class 1 of own has no training sample"):
        check(str(path))


def test_published_datasets_have_expected_contents_and_valid_checksums() -> None:
    for name, dataset in PUBLISHED_DATASETS.items():
        assert name in EXPECTED_CONTENTS
        for remote in dataset.files:
            assert len(bytes.fromhex(remote.md5)) == 16
            assert all(a.endswith("/" + remote.name) for a in remote.urls)
