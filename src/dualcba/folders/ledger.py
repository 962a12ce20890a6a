"""The outcome of each file: learnt, known, broken, or not an image.

The ledger is an append-only file of JSON lines. The model stores the number of bytes that belong to
it, and their SHA-256. Further bytes are from a process that ended before it saved the model, and
are truncated.
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
    """The outcome of a file; `said` is the model's prediction before it learnt the image."""

    file: File
    outcome: str
    sha256: str | None = None
    said: str | None = None

    @property
    def right(self) -> bool:
        """Whether the prediction was correct."""
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
    """The part of the ledger's file that belongs to a model."""

    size: int
    sha256: str


@dataclass
class Ledger:
    """The entries of a folder, and the lines not yet written to the file."""

    marks: dict[str, Mark] = field(default_factory=dict)
    """Marks by path of files that need not be read again."""

    labels: dict[str, set[str]] = field(default_factory=dict)
    """The classes under which an image was learnt, by the SHA-256 of its file."""

    answers: list[tuple[str, str | None]] = field(default_factory=list)
    """The class and the prior prediction of each learnt image, in order."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """The last outcome of each file by path; a broken file may have been completed since."""

    relabelled: int = 0
    """Number of images that were learnt under another class before."""

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
        """Return whether a file with this SHA-256 was learnt under this class."""
        return label in self.labels.get(sha256, ())

    @property
    def unsaved(self) -> int:
        """The number of entries not yet written."""
        return len(self._unsaved)

    def write(self, path: Path) -> Saved:
        """Append the new entries to the file, and return its valid part."""
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
        """Read the part of the file that belongs to a model."""
        try:
            with path.open("rb") as file:
                content = file.read(saved.size)
        except FileNotFoundError:
            content = b""
        digest = hashlib.sha256(content)
        if len(content) != saved.size or digest.hexdigest() != saved.sha256:
            wanted = f"the first {saved.size} bytes as recorded in its model"
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
    """Return the percentage of correct predictions, or None if there are none.

    >>> accuracy([("cat", "cat"), ("dog", None)])
    50.0
    """
    return 100 * sum(a == b for a, b in answers) / len(answers) if answers else None
