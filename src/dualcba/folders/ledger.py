"""What became of each file: learnt, known already, broken, or no image.

The ledger is a file of JSON lines that only grows. The model names how many of its bytes belong to
it, and their SHA-256; what is after them was written by a process that ended before it saved the
model, and is cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualcba.folders.watching import File, Mark
from dualcba.parsing import parse_json

LEARNT, KNOWN, BROKEN, OTHER = "learnt", "known", "broken", "other"
OUTCOMES = (LEARNT, KNOWN, BROKEN, OTHER)


@dataclass(frozen=True)
class Entry:
    """What became of a file. `said` is the model's answer before it learnt from the image."""

    file: File
    outcome: str
    sha256: str | None = None
    said: str | None = None

    @property
    def right(self) -> bool:
        """Whether the answer was the class."""
        return self.said == self.file.label

    def line(self) -> bytes:
        """Return the entry as a line of the file."""
        content = [self.outcome, self.file.path, list(self.file.mark), self.sha256, self.said]
        return json.dumps(content, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Entry:
        """Read a line of the file."""
        outcome, path, mark, sha256, said = parse_json(line)
        if outcome not in OUTCOMES or not isinstance(path, str):
            raise ValueError(f"the outcome {outcome!r} of {path!r} is unknown")
        size, changed, moved = map(int, mark)
        return cls(File(path, (size, changed, moved)), outcome, sha256, said)


@dataclass(frozen=True)
class Saved:
    """The part of the file that belongs to a model."""

    size: int
    sha256: str


@dataclass
class Ledger:
    """The entries of a folder in memory, and the lines that are not in the file yet."""

    marks: dict[str, Mark] = field(default_factory=dict)
    """The marks of files that need not be read again, by path."""

    labels: dict[str, set[str]] = field(default_factory=dict)
    """The classes under which a content was learnt, by its SHA-256."""

    answers: list[tuple[str, str | None]] = field(default_factory=list)
    """The class of each image that was learnt and the answer before, in order."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """What became of each file in the end, by path: a broken one may have been completed."""

    relabelled: int = 0
    """Images whose content was learnt under another class before."""

    _unsaved: list[bytes] = field(default_factory=list)
    _size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._take(entry)
        self._unsaved.append(entry.line())

    def _take(self, entry: Entry) -> None:
        self.marks[entry.file.path] = entry.file.mark
        self.outcomes[entry.file.path] = entry.outcome
        if entry.outcome != LEARNT or entry.sha256 is None:
            return
        before = self.labels.setdefault(entry.sha256, set())
        self.relabelled += bool(before)
        before.add(entry.file.label)
        self.answers.append((entry.file.label, entry.said))

    def count(self, outcome: str) -> int:
        """Return the number of files with an outcome."""
        return sum(one == outcome for one in self.outcomes.values())

    def knows(self, sha256: str, label: str) -> bool:
        """Return whether this content was learnt under this class."""
        return label in self.labels.get(sha256, ())

    @property
    def unsaved(self) -> int:
        """The number of entries that are not in the file."""
        return len(self._unsaved)

    def write(self, path: Path) -> Saved:
        """Append the entries that are not in the file, and return the part that is complete."""
        added = b"".join(self._unsaved)
        with path.open("r+b" if self._size else "w+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(added)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(added)
        self._digest.update(added)
        self._unsaved.clear()
        return Saved(self._size, self._digest.hexdigest())

    @classmethod
    def read(cls, path: Path, saved: Saved) -> Ledger:
        """Read the part of a file that belongs to a model."""
        try:
            with path.open("rb") as file:
                content = file.read(saved.size)
        except FileNotFoundError:
            content = b""
        digest = hashlib.sha256(content)
        if len(content) != saved.size or digest.hexdigest() != saved.sha256:
            wanted = f"the {saved.size} bytes of files seen that its model names"
            raise ValueError(f"{path} is damaged or missing, expected {wanted}")
        ledger = cls(_size=saved.size, _digest=digest)
        for entry in _entries(path, content):
            ledger._take(entry)
        return ledger


def _entries(path: Path, content: bytes) -> Iterator[Entry]:
    try:
        for line in content.splitlines():
            yield Entry.read(line)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a list of files: {error}") from None


def accuracy(answers: Sequence[tuple[str, str | None]]) -> float | None:
    """Return the percentage of answers that are the class; None if there are none.

    >>> accuracy([("cat", "cat"), ("dog", None)])
    50.0
    """
    return 100 * sum(a == b for a, b in answers) / len(answers) if answers else None
