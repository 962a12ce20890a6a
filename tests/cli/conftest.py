"""What the fuzzers of the command line share."""

from __future__ import annotations

import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run the command line in this process, without training anything."""
    import dualcba.cli.reproduce as reproduce
    import dualcba.cli.run as run
    from dualcba.cli.app import main

    for module in (run, reproduce):
        monkeypatch.setattr(module, "run_with_progress", lambda *_, **__: [])
        monkeypatch.setattr(module, "check_all", lambda *_: None)
    monkeypatch.setattr(reproduce, "_how_long", lambda *_: "")
    monkeypatch.setattr(reproduce, "write_files", lambda *_: [])
    monkeypatch.setattr(typer.main, "get_command", cache(typer.main.get_command))  # it is slow
    monkeypatch.chdir(tmp_path)

    def invoke(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dualcba", *words])
        capsys.readouterr()
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), capsys.readouterr().err
        except Exception:
            return 1, traceback.format_exc()
        raise AssertionError("main returned, expected that it exits")

    return invoke
