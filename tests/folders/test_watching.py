"""Which files of a growing folder are new, settled, hidden or of no class."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dualcba.folders.watching import File, Watcher

OLD = 1e9


def put(path: Path, text: str = "x", at: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def paths(watcher: Watcher, known: dict[str, tuple[int, int, int]] | None = None) -> list[str]:
    return [file.path for file in watcher.look(known or {}).settled]


def test_files_are_found_by_time_and_then_by_name(tmp_path: Path) -> None:
    put(tmp_path / "b" / "2.png", at=OLD + 5)
    put(tmp_path / "b" / "1.png", at=OLD + 5)
    put(tmp_path / "a" / "deep" / "3.png", at=OLD + 9)
    put(tmp_path / "c" / "4.png", at=OLD)
    assert paths(Watcher(tmp_path, 0)) == ["c/4.png", "b/1.png", "b/2.png", "a/deep/3.png"]
    assert File("a/deep/3.png", (0, 0, 0)).label == "a"


def test_hidden_files_and_those_of_no_class_are_left_out(tmp_path: Path) -> None:
    for name in (".hidden.png", "Thumbs.db", ".git/a.png", "ok.png"):
        put(tmp_path / "a" / name)
    put(tmp_path / ".cache" / "a.png")
    put(tmp_path / "loose.png")
    look = Watcher(tmp_path, 0).look({})
    assert [file.path for file in look.settled] == ["a/ok.png"]
    assert look.loose == 1


def test_a_file_that_changes_is_not_settled_until_it_stays(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "1.png", at=time.time())
    watcher = Watcher(tmp_path, 0.2)
    assert watcher.look({}).unsettled == 1
    path.write_text("longer")
    look = watcher.look({})
    assert (look.settled, look.unsettled) == ([], 1)
    time.sleep(0.25)
    assert paths(watcher) == ["a/1.png"]


def test_a_clock_that_is_ahead_does_not_keep_a_file_out(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png", at=time.time() + 3600)
    watcher = Watcher(tmp_path, 0.1)
    assert paths(watcher) == []
    time.sleep(0.12)
    assert paths(watcher) == ["a/1.png"]


def test_known_files_are_left_out_until_they_change(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "1.png")
    watcher = Watcher(tmp_path, 0)
    (found,) = watcher.look({}).settled
    known = {found.path: found.mark}
    assert paths(watcher, known) == []
    put(path, "y")  # of the same size and time
    assert paths(watcher, known) == ["a/1.png"]


def test_links_pipes_and_missing_folders_do_no_harm(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "nowhere.png").symlink_to(tmp_path / "gone")
    (tmp_path / "b").symlink_to(tmp_path / "a")  # a class may be a link to a folder
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert paths(Watcher(tmp_path, 0)) == ["a/1.png", "b/1.png"]
    assert paths(Watcher(tmp_path / "gone", 0)) == []


if not hasattr(os, "mkfifo"):
    pytestmark = pytest.mark.skip(reason="needs named pipes")
