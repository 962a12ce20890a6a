"""The run store: one folder per run, a result is there whole or not at all; a plan beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dualcba.experiments.spec import Spec
from dualcba.io import atomic_write, folder_lock

RESULT = "result.json"
PLAN = "plan.json"


def result_path(out: Path, spec: Spec) -> Path:
    """Where the result of a spec lies."""
    return out / spec.name / RESULT


def check_folder(out: Path) -> None:
    """Raise unless results can be written there."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file, expected a folder for the results")


def check_free(out: Path, specs: Iterable[Spec]) -> None:
    """Raise if a run would write where a complete one lies, or below a file."""
    check_folder(out)
    for spec in specs:
        if result_path(out, spec).exists():
            folder = result_path(out, spec).parent
            wanted = f"another --out, or `dualcba resume {out}` to go on with an earlier call"
            raise FileExistsError(f"{folder} already holds a complete run, expected {wanted}")


def write_result(
    out: Path,
    spec: Spec,
    result: dict[str, Any],
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> Path:
    """Write a result at once: a reader sees all of it or nothing.

    `files` are written beside it, each by its function, before the result says that all is there.
    """
    path = result_path(out, spec)
    for name, save in (files or {}).items():
        save(path.with_name(name))
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return path


def read_runs(out: Path) -> dict[Path, dict[str, Any]]:
    """All complete results below a folder by their own folders, in order of their names."""
    return {path.parent: _read_result(path) for path in sorted(out.glob(f"*/{RESULT}"))}


def read_results(out: Path) -> list[dict[str, Any]]:
    """All complete results below a folder, in order of their names."""
    return list(read_runs(out).values())


def _read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a result: {error}") from None
    if not isinstance(result, dict):
        raise ValueError(f"{path} holds a {type(result).__name__}, expected a result")
    return result


def write_plan(out: Path, specs: Iterable[Spec]) -> Path:
    """Write down what is going to be run, beside what earlier calls were going to run there."""
    path = out / PLAN
    with folder_lock(out):
        before = read_plan(out) if path.exists() else []
        planned = {spec.name: spec.to_dict() for spec in (*before, *specs)}
        with atomic_write(path) as draft:
            draft.write_text(json.dumps({"specs": list(planned.values())}, indent=1) + "\n")
    return path


def read_plan(out: Path) -> list[Spec]:
    """What the calls of `dualcba run` with this folder were going to run."""
    path = out / PLAN
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected the plan that `dualcba run` leaves")
    try:
        return [Spec(**spec) for spec in json.loads(path.read_text())["specs"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as a plan: {error}") from None
