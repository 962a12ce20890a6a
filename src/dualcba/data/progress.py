"""Progress callbacks, and progress bars on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress, ProgressColumn

ProgressCallback = Callable[[int, int | None], object]
"""Called with the amount done and the total, which is None if unknown."""


def ignore_progress(done: int, total: int | None) -> None:
    """Do nothing. The default progress callback."""


def progress_enabled(show: bool | None) -> bool:
    """Return `show`, or whether stderr is a terminal if `show` is None."""
    return sys.stderr.isatty() if show is None else show


def progress_bars(*columns: ProgressColumn, enabled: bool) -> Progress:
    """Return progress bars with these columns, drawn on stderr if enabled."""
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)


def add_bar(bars: Progress, title: str) -> ProgressCallback:
    """Add a bar and return a callback that updates it."""
    task = bars.add_task(title, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)
