"""`dualcba watch`: follow runs and learners whose monitors write to files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dualcba.cli.output import note
from dualcba.monitoring.files import WATCH, read_watch, watch_files
from dualcba.monitoring.panel import panel
from dualcba.monitoring.prometheus import prometheus_text
from dualcba.monitoring.serving import make_server

PANELS = 2
"""The largest number of panels to show; others are counted."""

SECONDS = 1.0
"""Seconds between two updates."""

Found = dict[Path, dict[str, Any]]


def watch_command(
    path: Path, *, once: bool, as_json: bool, prometheus: bool, port: int | None
) -> None:
    """Show the monitors below a folder until all have ended, or print or serve their numbers."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing, expected a folder of runs or a {WATCH}")
    asked = {"--once": once, "--json": as_json, "--prometheus": prometheus}
    given = [name for name, on in asked.items() if on]
    if (as_json and prometheus) or (port is not None and given):
        names = [*given, *["--port"] * (port is not None)]
        wanted = "one of --json, --prometheus and --port, and --once without --port"
        raise ValueError(f"{' and '.join(names)} were given, expected {wanted}")
    if port is not None:
        _serve(path, port)
        return
    console = Console()
    if as_json or prometheus or once or not console.is_terminal:
        _print(_read_any(path), path, console, as_json=as_json, prometheus=prometheus)
        return
    _follow(path, console)


def read_all(path: Path) -> Found:
    """Return the contents of monitor files below a folder, newest last.

    Files may be removed meanwhile.
    """
    found = {}
    for file in watch_files(path):
        with suppress(FileNotFoundError):
            found[file] = read_watch(file)
    return found


def _read_any(path: Path) -> Found:
    if not (found := read_all(path)):
        wanted = f"a {WATCH}, which `dualcba run --watch` and Monitor(path=…) write"
        raise FileNotFoundError(f"{path} has no monitor's file, expected {wanted}")
    return found


def _print(found: Found, path: Path, console: Console, *, as_json: bool, prometheus: bool) -> None:
    if as_json:
        typer.echo(json.dumps({_name(file, path): one for file, one in found.items()}))
    elif prometheus:
        typer.echo(_text(found, path), nl=False)
    else:
        console.print(_panels(found, path))


def _name(file: Path, path: Path) -> str:
    """Return the name of a run: its folder relative to the watched one."""
    if file == path or file.parent == path:
        return file.absolute().parent.name
    return str(file.parent.relative_to(path))


def _text(found: Found, path: Path) -> str:
    return prometheus_text([({"run": _name(file, path)}, one) for file, one in found.items()])


def _panels(found: Found, path: Path) -> RenderableType:
    """Return the panels of the runs that changed last, and a count of the others."""
    shown = sorted(found, key=lambda file: found[file]["status"] == "running")[-PANELS:]
    parts: list[RenderableType] = []
    if others := len(found) - len(shown):
        running = sum(one["status"] == "running" for one in found.values())
        text = f"{len(found)} monitors, {running} running; the last {len(shown)}:"
        parts.append(Text(text if others else "", style="dim"))
    parts += [panel(found[file], now=time.time(), title=_name(file, path)) for file in shown]
    return Group(*parts)


def _follow(path: Path, console: Console) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for found in _snapshots(path):
            live.update(
                _panels(found, path) if found else Text("waiting for monitors"), refresh=True
            )


def _snapshots(path: Path) -> Iterator[Found]:
    """Yield all monitors every `SECONDS`, until there are some and all have ended."""
    while True:
        found = read_all(path)
        yield found
        if found and all(one["status"] != "running" for one in found.values()):
            return
        time.sleep(SECONDS)


def _serve(path: Path, port: int) -> None:
    """Serve the numbers for Prometheus until Ctrl-C."""
    with make_server(lambda: _text(read_all(path), path), port) as server:
        note(f"serving http://127.0.0.1:{server.server_address[1]}/metrics; stop with Ctrl-C")
        server.serve_forever()
