"""The run store: one folder per run, a result is there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dualcba.experiments.spec import Spec
from dualcba.files import whole

RESULT = "result.json"


def result_path(out: Path, spec: Spec) -> Path:
    """Where the result of a spec lies."""
    return out / spec.name / RESULT


def check_free(out: Path, specs: Iterable[Spec]) -> None:
    """Raise if a run would write where a complete one lies, or below a file."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file, expected a folder for the results")
    for spec in specs:
        if result_path(out, spec).exists():
            folder = result_path(out, spec).parent
            raise FileExistsError(f"{folder} already holds a complete run, expected another --out")


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
    with whole(path) as draft:
        draft.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return path


def read_results(out: Path) -> list[dict[str, Any]]:
    """All complete results below a folder, in order of their names."""
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"*/{RESULT}"))]
