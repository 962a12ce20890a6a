"""The list of files seen: what it knows, and how it survives an end at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualcba.folders.ledger import BROKEN, KNOWN, LEARNT, Entry, Ledger, Saved
from dualcba.folders.watching import File


def learnt(path: str, sha256: str, said: str | None = None) -> Entry:
    return Entry(File(path, (1, 2, 3)), LEARNT, sha256, said)


def filled() -> Ledger:
    ledger = Ledger()
    ledger.add(learnt("cat/1.png", "aa"))
    ledger.add(learnt("cat/2.png", "bb", "cat"))
    ledger.add(Entry(File("dog/x.png", (0, 1, 1)), BROKEN))
    ledger.add(learnt("dog/1.png", "aa", "cat"))
    ledger.add(Entry(File("cat/3.png", (1, 9, 9)), KNOWN, "bb"))
    return ledger


def test_a_content_is_known_by_class(tmp_path: Path) -> None:
    ledger = filled()
    assert ledger.knows("aa", "cat")
    assert ledger.knows("aa", "dog")
    assert not ledger.knows("bb", "dog")
    assert (ledger.relabelled, ledger.count(BROKEN), ledger.count(KNOWN)) == (1, 1, 1)
    assert ledger.answers == [("cat", None), ("cat", "cat"), ("dog", "cat")]


def test_a_broken_file_that_is_completed_is_not_counted(tmp_path: Path) -> None:
    ledger = filled()
    ledger.add(learnt("dog/x.png", "cc"))
    assert ledger.count(BROKEN) == 0


def test_reading_gives_what_was_written_in_parts(tmp_path: Path) -> None:
    path, ledger = tmp_path / "seen", filled()
    ledger.write(path)
    ledger.add(learnt("fish/\udcff\n1.png", "dd"))  # a name of any bytes
    saved = ledger.write(path)
    again = Ledger.read(path, saved)
    assert again.marks == ledger.marks
    assert again.labels == ledger.labels
    assert again.answers == ledger.answers
    again.add(learnt("fish/2.png", "ee"))
    ledger.add(learnt("fish/2.png", "ee"))
    assert again.write(path) == ledger.write(tmp_path / "seen")


def test_lines_after_the_saved_part_are_cut_off(tmp_path: Path) -> None:
    path, ledger = tmp_path / "seen", filled()
    saved = ledger.write(path)
    ledger.add(learnt("fish/1.png", "dd"))
    ledger.write(path)  # and the process ends before it saves the model
    again = Ledger.read(path, saved)
    assert "fish/1.png" not in again.marks
    again.add(learnt("fish/2.png", "ee"))
    assert Ledger.read(path, again.write(path)).answers[-1] == ("fish", None)
    assert path.read_bytes().count(b"fish") == 1


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_damage_is_one_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / "seen"
    saved = filled().write(path)
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content if how == "flip" else content[:-1])
    if how == "gone":
        path.unlink()
    with pytest.raises(
        ValueError, match=r"seen is damaged or missing, expected the first \d+ bytes"
    ):
        Ledger.read(path, saved)


def test_lines_of_another_kind_are_refused(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "seen"
    path.write_bytes(b'["eaten","a",[1,2,3],null,null]\n')
    saved = Saved(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match="cannot be read as a list of files: the outcome 'eaten'"):
        Ledger.read(path, saved)
