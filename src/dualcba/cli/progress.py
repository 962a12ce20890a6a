"""Runs of specs with progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

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

from dualcba.cli.output import note
from dualcba.experiments import Load, Result, Spec
from dualcba.experiments.pool import (
    EVERY,
    RunUpdate,
    process_count,
    run_specs,
    run_specs_in_processes,
)
from dualcba.experiments.store import read_result, result_path
from dualcba.options import ExecutionOptions


def run_with_progress(
    specs: Sequence[Spec], load: Load, execution: ExecutionOptions, out: Path, *, show: bool
) -> list[Result]:
    """Run specs and return their results in order, as they are on the disk.

    `show` enables the progress bars.
    """
    abreast = execution.abreast
    jobs = process_count(execution.jobs, len(specs), execution, abreast=abreast)
    if jobs > 1:
        updates = run_specs_in_processes(specs, load, execution, out, jobs)
    else:
        every = EVERY if show or execution.track else 0
        updates = run_specs(specs, load, execution, out, abreast=abreast, every=every)
    with _tracking(execution.track, out) as track, closing(updates), _bars(show) as progress:
        bars = Bars(progress, len(specs))
        for update in updates:
            bars.show(update)
            track(update)
    return read_all(specs, out)


@contextmanager
def _tracking(names: Sequence[str], out: Path) -> Iterator[Callable[[RunUpdate], None]]:
    """Yield a function that tells trackers of an update; without trackers it does nothing."""
    if not names:
        yield lambda _: None
        return
    from dualcba.report.tracking import Tracking  # draws figures, so it is slow to import

    with closing(Tracking(names, out, note)) as tracking:
        yield tracking.see


def read_all(specs: Sequence[Spec], out: Path) -> list[Result]:
    """Return the results of specs that have been run; raise an OSError if one cannot be read."""
    results: list[Result] = []
    lost: list[str] = []
    for spec in specs:
        try:
            results.append(read_result(result_path(out, spec)))
        except (OSError, ValueError):
            lost.append(spec.name)
    if lost:
        was = f"{len(lost)} of {len(specs)} results are missing from {out}, such as {lost[0]}"
        raise OSError(f"{was}: removed or damaged during the run, expected a folder that stays")
    return results


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
    """One bar for all runs, and one for each run in progress."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self.progress = progress
        self.overall = progress.add_task("all runs", total=runs, rate=0, acc="")
        self.begun = progress.get_time()
        self.samples = 0
        self.bars: dict[str, tuple[TaskID, float]] = {}

    def show(self, update: RunUpdate) -> None:
        """Update the bar of a run; the bar of a complete run is removed."""
        spec, now = update.spec, self.progress.get_time()
        if spec.name not in self.bars:
            title = f"{spec.method} seed {spec.seed}"
            bar = self.progress.add_task(title, total=update.total, rate=0, acc="")
            self.bars[spec.name] = bar, now
        bar, begun = self.bars[spec.name]
        samples = update.step * spec.batch_size
        acc = "" if update.accuracy is None else f"acc {update.accuracy:.1f}"
        if update.result is None:
            rate = samples / max(now - begun, 1e-9) if now > begun else 0
            self.progress.update(bar, completed=update.step, rate=rate, acc=acc)
            return
        self.samples += samples
        self.progress.remove_task(bar)
        rate = self.samples / max(now - self.begun, 1e-9)
        self.progress.update(self.overall, advance=1, rate=rate, acc=acc)
