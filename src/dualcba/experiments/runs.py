"""Find, open, compare and remove the runs in a store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.errors import reason
from dualcba.experiments.result import NAMED, AnySpec, Result
from dualcba.experiments.store import (
    LOCK,
    PLAN,
    RESULT,
    check_runs_folder,
    drop_from_plan,
    files_below,
    planned_runs,
    read_result,
)
from dualcba.io import is_held

PLANNED, IN_PROGRESS, DAMAGED = "not run", "in progress", "damaged"

Pair = tuple[Any, Any]
"""The values of two runs."""


@dataclass(frozen=True)
class StoredRun:
    """A run in a store: its folder and status, and its result if there is one."""

    folder: Path
    status: str
    result: Result | None = None
    spec: AnySpec | None = None
    """The spec of a planned run."""

    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that `dualcba runs ls --json` prints."""
        fields = self.result.fields if self.result else self.spec.to_dict() if self.spec else {}
        seconds = self.result.seconds.get("total") if self.result else None
        return {
            "run": str(self.folder),
            "status": self.status,
            **{name: fields.get(name) for name in (*NAMED, "seed", "validation")},
            "scores": dict(self.result.scores) if self.result else None,
            "seconds": seconds,
            "problem": self.problem,
        }


def stored_runs(folders: Iterable[Path]) -> list[StoredRun]:
    """Return the runs below folders at any depth: complete, damaged and planned ones.

    A planned run is in progress if a process, perhaps on another machine, holds its lock. A damaged
    run has the error as its `problem`.
    """
    found: dict[Path, StoredRun] = {}
    for folder in folders:
        check_runs_folder(folder)
        for path in files_below(folder, RESULT):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.setdefault(path.parent, _stored(path))
        for plan in files_below(folder, PLAN):
            for run in _planned(plan.parent):
                found.setdefault(run.folder, run)
    return [found[folder] for folder in sorted(found)]


def _stored(path: Path) -> StoredRun:
    try:
        result = read_result(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        return StoredRun(path.parent, DAMAGED, problem=reason(error))
    return StoredRun(path.parent, result.status, result)


def _planned(out: Path) -> Iterator[StoredRun]:
    try:
        planned = planned_runs(out)
    except ValueError as error:
        yield StoredRun(out / PLAN, DAMAGED, problem=reason(error))
        return
    for folder, spec in planned:
        status = IN_PROGRESS if is_held(folder / LOCK) else PLANNED
        yield StoredRun(folder, status, spec=spec)


def open_run(path: Path) -> tuple[Path, Result]:
    """Return the folder and the result of a run, given its folder or its result file."""
    folder = path.parent if path.name == RESULT else path
    if not (folder / RESULT).is_file():
        wanted = f"the folder of a run, with a {RESULT}; `dualcba runs ls` lists them"
        raise FileNotFoundError(f"{folder} is not a run, expected {wanted}")
    return folder, read_result(folder / RESULT)


# ---------------------------------------------------------------------- two runs beside each other


@dataclass(frozen=True)
class Difference:
    """The fields in which two runs differ, with both values, and the scores of both.

    `equal` tells whether all scores, accuracies and curves are exactly equal.
    """

    spec: dict[str, Pair]
    data: dict[str, Pair]
    """The path of the dataset and the digest of its content."""

    versions: dict[str, Pair]
    scores: dict[str, dict[str, Pair]]
    """Scores by statistics that at least one run has, including equal ones."""

    equal: bool


def difference(first: Result, second: Result) -> Difference:
    """Return the differences of two runs."""
    statistics = dict.fromkeys((*first.scores, *second.scores))
    return Difference(
        spec=_differing(first.fields, second.fields),
        data=_differing(_data(first), _data(second)),
        versions=_differing(first.versions, second.versions),
        scores={s: _both(first.scores.get(s, {}), second.scores.get(s, {})) for s in statistics},
        equal=_measured(first) == _measured(second),
    )


def _data(result: Result) -> dict[str, Any]:
    """Return the path and digest of a result's data, if they are recorded."""
    return {} if result.data is None else {"path": result.data.path, "digest": result.data.digest}


def _measured(result: Result) -> list[Any]:
    content = result.to_dict()
    return [content.get(n) for n in ("scores", "accuracy_matrix", "anytime", "recordings")]


def _both(first: Any, second: Any) -> dict[str, Pair]:
    pairs = {name: (first.get(name), second.get(name)) for name in dict.fromkeys((*first, *second))}
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}


def _differing(first: Any, second: Any) -> dict[str, Pair]:
    return {name: pair for name, pair in _both(first, second).items() if pair[0] != pair[1]}


# ---------------------------------------------------------------------- removal


def removable(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of runs; raise an error if one is not a run, or has other runs in it."""
    folders = []
    for path in paths:
        folder = path.parent if path.name == RESULT else path
        if folder.is_symlink() or not (folder / RESULT).is_file():
            wanted = f"the folder of a run, with a {RESULT}"
            raise FileNotFoundError(f"{folder} is not a run, expected {wanted}")
        if any(folder.glob(f"*/**/{RESULT}")) or (folder / PLAN).exists():
            raise ValueError(f"{folder} holds other runs, expected the folder of one run")
        folders.append(folder)
    return list(dict.fromkeys(folders))


def remove_run(folder: Path) -> None:
    """Remove the folder of a run and its entry in the plan, so that `resume` does not repeat it.

    The result is removed first, so that a partly removed run does not count as complete.
    """
    try:
        drop_from_plan(folder.parent, folder.name)
        (folder / RESULT).unlink()
        shutil.rmtree(folder)
    except OSError as error:
        wanted = "a run in a folder that can be written"
        raise OSError(f"{folder} cannot be removed: {error.strerror}, expected {wanted}") from error
