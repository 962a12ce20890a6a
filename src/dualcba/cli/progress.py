"""Make runs with progress bars."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from dualcba.cli.failures import FailedRunsError, Failures, InterruptedRunsError, resume_hint
from dualcba.cli.output import note
from dualcba.experiments import Load, Result, Spec
from dualcba.experiments.eta import Remaining
from dualcba.experiments.pool import (
    EVERY,
    RunUpdate,
    process_count,
    run_specs,
    run_specs_in_processes,
)
from dualcba.experiments.scheduler import Failed
from dualcba.experiments.stopping import stop
from dualcba.experiments.store import read_result, result_path
from dualcba.options import ExecutionOptions

MINUTE = 60.0
"""Seconds between two lines of progress if there is no terminal."""


def run_with_progress(
    specs: Sequence[Spec],
    load: Load,
    execution: ExecutionOptions,
    out: Path,
    *,
    show: bool,
    again: str | None = None,
) -> list[Result]:
    """Run specs and return their results in order, as read from disk.

    `show` enables the progress bars. If one of several runs fails, the others continue, and a
    `FailedRunsError` with their results is raised at the end. `again` tells the user how to
    continue after an interrupt, by default with `resume`.
    """
    again = again or resume_hint(out, specs)
    with _tracking(execution.track, out) as track, _bars(show) as progress:
        bars = Bars(progress, len(specs))
        failures = Failures(bars.say)
        alone = len(specs) == 1  # then its error is raised
        with _interrupts_named(again):
            failed = None if alone else failures.add
            _run(specs, load, execution, out, bars, failed, track, show=show)
    done = [spec for spec in specs if spec.name not in failures.found]
    results = read_all(done, out)
    if failures.found:
        raise FailedRunsError(failures.message(len(specs), again), results)
    return results


def _run(
    specs: Sequence[Spec],
    load: Load,
    execution: ExecutionOptions,
    out: Path,
    bars: Bars,
    failed: Failed | None,
    track: Callable[[RunUpdate], None],
    *,
    show: bool,
) -> None:
    """Run specs on this machine, Ray or Slurm, and show their updates."""
    every = EVERY if show or execution.track else 0
    jobs = 0
    if execution.on == "local":
        jobs = process_count(execution.jobs, len(specs), execution, abreast=execution.abreast)
    updates = _updates(specs, load, execution, out, jobs, every, failed)
    in_turn = jobs == 1 and execution.checkpoints is not None  # a signal stops it between two steps
    with closing(updates), stop.listening() if in_turn else nullcontext():
        for update in updates:
            bars.show(update)
            track(update)


def _updates(
    specs: Sequence[Spec],
    load: Load,
    execution: ExecutionOptions,
    out: Path,
    jobs: int,
    every: int,
    failed: Failed | None,
) -> Generator[RunUpdate, None, None]:
    """Run specs in this process, in several processes, on Ray or on Slurm."""
    if execution.on == "ray":
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray prints on stdout
        from dualcba.experiments.on_ray import run_specs_on_ray

        return run_specs_on_ray(specs, load, execution, out, every=every, failed=failed)
    if execution.on == "slurm":
        from dualcba.experiments.on_slurm import run_specs_on_slurm

        return run_specs_on_slurm(specs, load, execution, out, every=every, failed=failed)
    own: dict[str, Any] = {"checkpoints": execution.checkpoints, "watch": execution.watch}
    if jobs > 1:
        return run_specs_in_processes(specs, load, execution, out, jobs, failed=failed, **own)
    abreast = execution.abreast
    return run_specs(
        specs, load, execution, out, abreast=abreast, every=every, failed=failed, **own
    )


@contextmanager
def _interrupts_named(again: str) -> Iterator[None]:
    """Turn an interrupt into one that says what is kept and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunsError(f"complete runs and checkpoints are kept; {again}") from None


@contextmanager
def _tracking(names: Sequence[str], out: Path) -> Iterator[Callable[[RunUpdate], None]]:
    """Yield a function that logs an update to the trackers, if there are any."""
    if not names:
        yield lambda _: None
        return
    from dualcba.report.tracking import Tracking  # imports the figures, which is slow

    with closing(Tracking(names, out, note)) as tracking:
        yield tracking.see


def read_all(specs: Sequence[Spec], out: Path) -> list[Result]:
    """Return the results of specs that were run; raise an OSError if any cannot be read."""
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
        TimeLeft(table_column=Column(no_wrap=True)),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not show)


class TimeLeft(TimeRemainingColumn):
    """The time left: of all runs as passed in `left`, of one run from its own pace."""

    def render(self, task: Task) -> Text:
        """Return the time left of a bar as text."""
        left = task.fields.get("left")
        return super().render(task) if left is None else Text(left, style="progress.remaining")


class Bars:
    """One bar for all runs and one per run in progress; without a terminal, a line per minute."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self.progress = progress
        self.overall = progress.add_task("all runs", total=runs, rate=0, acc="", left="")
        self.begun = self.line_at = progress.get_time()
        self.samples = self.complete = 0
        self.bars: dict[str, tuple[TaskID, float]] = {}
        self.remaining = Remaining(runs)
        self.said: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line above the bars, unless it was printed before."""
        if text not in self.said:
            self.said.add(text)
            with suppress(OSError):  # the terminal may be closed
                console = self.progress.console
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, update: RunUpdate) -> None:
        """Show an update in the bar of its run and in the bar of all runs."""
        now = self.progress.get_time()
        if update.note is not None:
            self.say(f"dualcba: {update.note}")
            return
        self._show_run(update, now)
        self.complete += update.result is not None
        self.remaining.update(update.spec.name, update.step, update.total, now)
        left = self.remaining.words(now)
        self.progress.update(self.overall, left=left)
        if not self.progress.console.is_terminal and now - self.line_at >= MINUTE:
            self.line_at = now
            if not self.progress.disable:
                self.say(self._line(update, left))

    def _line(self, update: RunUpdate, left: str) -> str:
        spec, runs = update.spec, self.remaining.runs
        where = f"{spec.method} seed {spec.seed} at step {update.step} of {update.total}"
        return f"dualcba: {self.complete} of {runs} runs complete; {where}; {left}"

    def _show_run(self, update: RunUpdate, now: float) -> None:
        """Update the bar of a run; the bar of a complete run is removed."""
        spec = update.spec
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
