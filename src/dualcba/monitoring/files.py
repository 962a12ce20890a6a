"""The file of a monitor, written atomically, through which other processes follow it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualcba.errors import expected
from dualcba.io import atomic_write
from dualcba.parsing import parse_json

WATCH = "watch.json"
SCHEMA = 1

FIELDS = {
    "status": str, "time": float, "step": int, "task": int, "samples": int, "window": dict,
    "classes": list, "confusion": list, "loss": dict, "memory": dict,
}  # fmt: skip
"""Required fields and their types."""


def write_watch(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content of a monitor's file, completely or not at all."""
    with atomic_write(path, durable=False) as draft:
        draft.write_text(json.dumps(content, allow_nan=False) + "\n")


def watch_content(
    numbers: Mapping[str, Any], about: Mapping[str, Any], status: str
) -> dict[str, Any]:
    """Return the content of a monitor's file now."""
    return {"schema": SCHEMA, "status": status, "time": time.time(), **about, **numbers}


def read_watch(path: Path) -> dict[str, Any]:
    """Read the numbers that a monitor wrote; raise a ValueError that names the file."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        if content.get("schema") != SCHEMA:
            raise ValueError(expected("schema", content.get("schema"), str(SCHEMA)))
        for name, kind in FIELDS.items():
            if not isinstance(content.get(name), kind):
                raise ValueError(expected(name, content.get(name), f"of type {kind.__name__}"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a monitor's file: {error}") from None
    return content


def watch_files(path: Path) -> list[Path]:
    """Return the files of monitors below a folder, newest last, or the given file."""
    if path.is_file():
        return [path]
    found = [Path(folder, WATCH) for folder, _, names in os.walk(path) if WATCH in names]
    return sorted(found, key=lambda p: (p.stat().st_mtime, str(p)))
