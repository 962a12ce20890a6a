"""Runs specs with a progress bar, and writes each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from dualcba.experiments import Hardware, Load, Spec
from dualcba.experiments.pool import (
    EVERY,
    RunUpdate,
    process_count,
    run_specs,
    run_specs_in_processes,
)


@dataclass(frozen=True)
class Ways:
    """How runs are shared out: in processes on a CPU, side by side on a GPU."""

    jobs: int | None = None
    abreast: int = 1


def run_with_progress(
    specs: Sequence[Spec], load: Load, hardware: Hardware, out: Path, ways: Ways, *, show: bool
) -> list[dict[str, Any]]:
    """The results of all specs, in their order; `show` says whether there is a bar."""
    jobs = process_count(ways.jobs, len(specs), hardware, abreast=ways.abreast)
    if jobs > 1:
        source = run_specs_in_processes(specs, load, hardware, out, jobs)
    else:
        every = EVERY if show else 0
        source = run_specs(specs, load, hardware, out, abreast=ways.abreast, every=every)
    results: dict[str, dict[str, Any]] = {}
    with closing(source), _bars(show) as progress:
        bars = Bars(progress, len(specs))
        for news in source:
            bars.tell(news)
            if news.result is not None:
                results[news.spec.name] = news.result
    return [results[spec.name] for spec in specs]


def _bars(show: bool) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>6.0f} samples/s  {task.fields[acc]:>8}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not show)


class Bars:
    """A bar for all runs, and one for each that is under way."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self.progress = progress
        self.overall = progress.add_task("all runs", total=runs, rate=0, acc="")
        self.begun = progress.get_time()
        self.samples = 0
        self.bars: dict[str, tuple[TaskID, float]] = {}

    def tell(self, news: RunUpdate) -> None:
        """Show how far a run is; one that is complete gives its place to the next."""
        spec, now = news.spec, self.progress.get_time()
        if spec.name not in self.bars:
            title = f"{spec.method} seed {spec.seed}"
            bar = self.progress.add_task(title, total=news.total, rate=0, acc="")
            self.bars[spec.name] = bar, now
        bar, begun = self.bars[spec.name]
        samples = news.step * spec.batch_size
        acc = "" if news.accuracy is None else f"acc {news.accuracy:.1f}"
        if news.result is None:
            rate = samples / max(now - begun, 1e-9) if now > begun else 0
            self.progress.update(bar, completed=news.step, rate=rate, acc=acc)
            return
        self.samples += samples
        self.progress.remove_task(bar)
        rate = self.samples / max(now - self.begun, 1e-9)
        self.progress.update(self.overall, advance=1, rate=rate, acc=acc)
