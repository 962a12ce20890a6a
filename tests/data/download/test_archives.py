"""Unpack archives: intact, damaged and malicious ones."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from download_helpers import CONTENT, listing, make_tar, make_zip

from dualcba.data.download.archives import unpack

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


def test_a_disk_that_fills_up_while_unpacking(small_disk: Path, tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"toy/big": CONTENT * 6})
    with pytest.raises(OSError, match="no space left"):
        unpack(archive, small_disk / "toy")
    assert listing(small_disk) == []


def test_a_planted_symbolic_link_is_refused(tmp_path: Path) -> None:
    """The folder that files are unpacked to must be new."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / ".toy.unpacking").symlink_to(victim)
    archive = make_zip(tmp_path / "toy.zip", {"toy/x": b"1"})
    with pytest.raises(FileExistsError, match="unpacking"):
        unpack(archive, tmp_path / "toy")
    assert listing(victim) == []
