"""Download a file from a local server that fails on request."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from download_helpers import CONTENT, NAME, Handler, Server, listing, md5

from dualcba.data.download.published import (
    RemoteFile,
)
from dualcba.data.download.remote_file import download


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


class Full(io.BytesIO):
    def write(self, *_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_disk_full(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["dualcba.data.download.remote_file"]
    monkeypatch.setattr(module, "_open_part", lambda *_, **__: Full())
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


def test_free_space_is_checked_in_advance(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(target.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="300000 bytes needed, 1000 free"):
        download(server.remote(), target)
    assert listing(target.parent) == []


def test_a_disk_that_fills_up(server: Server, small_disk: Path) -> None:
    content = CONTENT * 6
    server.files[NAME] = content
    server.sends_length = False  # then the size is not known in advance
    with pytest.raises(OSError, match="no space left") as caught:
        download(server.remote(content), small_disk / NAME)
    assert "\n" not in str(caught.value)
    assert listing(small_disk) in ([], [NAME + ".part"])


def sized(server: Server, size: int = len(CONTENT)) -> RemoteFile:
    return replace(server.remote(), size=size, sha256=hashlib.sha256(CONTENT).hexdigest())


def test_the_sha256_is_verified_where_it_is_known(server: Server, target: Path) -> None:
    remote = replace(sized(server), md5=md5(b"of another file"))
    download(remote, target)
    assert target.read_bytes() == CONTENT
    server.files[NAME] = b"?" + CONTENT[1:]
    target.unlink()
    with pytest.raises(OSError, match=f"has the sha256 .* expected {remote.sha256}"):
        download(remote, target)
    assert listing(target.parent) == []


@pytest.mark.parametrize("change", [-1000, -1, 1, 10**6])
def test_an_announced_size_is_checked_before_the_download(
    server: Server, target: Path, change: int
) -> None:
    with pytest.raises(OSError, match="bytes than the size, expected") as caught:
        download(sized(server, len(CONTENT) + change), target)
    assert "\n" not in str(caught.value)
    assert listing(target.parent) == []
    assert len(server.ranges) == 1


def test_a_server_that_sends_too_much_is_cut_off(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It announces no length, and would send a gigabyte."""
    sent: list[int] = []

    def endless(handler: Handler, *_: object) -> None:
        for _ in range(1024):
            handler.wfile.write(bytes(1 << 20))
            sent.append(1 << 20)

    server.sends_length = False
    monkeypatch.setattr(Handler, "body", endless)
    monkeypatch.setattr(type(server), "handle_error", lambda *_: None)
    with pytest.raises(OSError, match="sends more bytes than the size, expected 300000"):
        download(sized(server), target)
    assert listing(target.parent) == []
    assert sum(sent) < 64 << 20


def test_a_part_larger_than_the_file_is_thrown_away(server: Server, target: Path) -> None:
    target.with_name(NAME + ".part").write_bytes(CONTENT + b"?")
    download(sized(server), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_known_size_is_awaited_if_none_is_announced(server: Server, target: Path) -> None:
    server.sends_length = False
    server.failures = [("cut", 100_000)]
    download(sized(server), target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


@pytest.mark.parametrize("name", [NAME, NAME + ".part"])
@pytest.mark.parametrize("content", [None, b"mine", CONTENT[:1000], CONTENT])
def test_a_planted_symbolic_link_is_refused(
    server: Server, target: Path, name: str, content: bytes | None
) -> None:
    victim = target.parent / "victim"
    if content is not None:
        victim.write_bytes(content)
    (target.parent / name).symlink_to(victim)
    with pytest.raises(OSError, match=f"{name} is a symbolic link, expected a file or nothing$"):
        download(server.remote(), target)
    assert (victim.read_bytes() if victim.exists() else None) == content
    assert (target.parent / name).is_symlink()
    assert server.ranges == []


@pytest.mark.parametrize("start", [0, 1000])
def test_a_link_planted_during_the_download_is_not_followed(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """It appears after the first look, before the file is opened."""
    victim, part = target.parent / "victim", target.with_name(NAME + ".part")
    victim.write_bytes(CONTENT[:start])
    if start:
        part.write_bytes(CONTENT[:start])
    original = Handler.head

    def plant(handler: Handler, *args: int) -> None:
        part.unlink(missing_ok=True)
        part.symlink_to(victim)
        original(handler, *args)

    monkeypatch.setattr(Handler, "head", plant)
    if start:
        with pytest.raises(OSError, match="symbolic links"):
            download(server.remote(), target)
    else:
        assert download(server.remote(), target).read_bytes() == CONTENT
    assert victim.read_bytes() == CONTENT[:start]
