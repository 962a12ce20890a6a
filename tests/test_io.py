"""Atomic writes: what is left after failures and kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dualcba.checkpoint import read_state_file, write_state_file
from dualcba.io import DRAFT, OLD, _host, atomic_write

KILLS = 200 if os.environ.get("DUALCBA_FUZZ") == "full" else 20
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs modes, links and signals")


def write(path: Path, text: str = "new") -> None:
    with atomic_write(path) as draft:
        draft.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@needs_posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_an_existing_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == mode


@needs_posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a.json")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o7777 == 0o666 & ~mask


@needs_posix
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(exists: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "a.json", tmp_path / "folder" / "link.json"
    target.parent.mkdir()
    link.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to(Path("..", "disk", "a.json"))
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(target.parent) == ["a.json"]
    assert names(link.parent) == ["link.json"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(path, "old")
    with pytest.raises(TypeError):
        write(path, None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.json"]


@needs_posix
def test_the_content_is_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name[: len(DRAFT)])
        fsync(handle)

    def note_replace(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write(tmp_path / "a.json")
    assert done == [DRAFT, "rename", tmp_path.name[: len(DRAFT)]]


@needs_posix
def test_drafts_of_ended_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = tmp_path / f"{DRAFT}{_host()}-{ended.pid}-00"
    old = tmp_path / f"{DRAFT}x"
    alive = tmp_path / f"{DRAFT}{_host()}-{os.getppid()}-00"
    elsewhere = tmp_path / f"{DRAFT}00000000-{ended.pid}-00"
    unknown = tmp_path / f"{DRAFT}y"
    for path in (gone, old, alive, elsewhere, unknown):
        path.write_text("half")
    os.utime(old, (0, time.time() - OLD - 60))
    write(tmp_path / "a.json")
    assert names(tmp_path) == sorted([alive.name, elsewhere.name, unknown.name, "a.json"])


def states() -> list[dict[str, Any]]:
    """Two states of about half a megabyte, so that a write takes a while."""
    return [
        {"tensors": {f"t{i}": torch.full((2**14,), float(k)) for i in range(8)}, "meta": {"k": k}}
        for k in range(2)
    ]


def write_until_killed(path: Path, ready: int) -> None:
    """Write the two states in turns without an end, in a process of its own."""
    both = states()
    os.write(ready, b"x")
    while True:
        for state in both:
            write_state_file(path, state)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_kill_while_saving_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, rng, both = tmp_path / "state.safetensors", random.Random(0), states()
    write_state_file(path, both[0])
    drafts = 0
    for _ in range(KILLS):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_until_killed(path, writer)
            finally:
                os._exit(1)  # reached only if a write failed
        os.read(reader, 1)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        assert os.WIFSIGNALED(status), "a write failed before the kill"
        state = read_state_file(path)
        k = state["meta"]["k"]
        assert all(torch.equal(state["tensors"][n], t) for n, t in both[k]["tensors"].items())
        drafts += len(names(tmp_path)) - 1
        assert len(names(tmp_path)) <= 2, "drafts of earlier kills are not removed"
    assert drafts, "no kill hit a write"
    write_state_file(path, both[0])
    assert names(tmp_path) == [path.name]
