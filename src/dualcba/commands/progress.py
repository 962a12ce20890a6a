"""Runs specs with a progress bar, and writes each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
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

from dualcba.experiments import Hardware, Load, Spec, run_all, write_result


def run_with_progress(
    specs: Sequence[Spec], load: Load, hardware: Hardware, out: Path, abreast: int, *, show: bool
) -> list[dict[str, Any]]:
    """The results of all specs, in their order; `show` says whether there is a bar."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>6.0f} samples/s  {task.fields[acc]:>8}"),
        TimeRemainingColumn(),
    )
    results: dict[str, dict[str, Any]] = {}
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        clock = progress.get_time
        overall = progress.add_task("all runs", total=len(specs), rate=0, acc="")
        bars: dict[str, tuple[TaskID, float]] = {}
        samples, started = 0, clock()
        for run, done in run_all(specs, load, hardware, abreast=abreast):
            spec, step = run.spec, run.learner.step
            if spec.name not in bars:
                title = f"{spec.method} seed {spec.seed}"
                bar = progress.add_task(title, total=run.total, rate=0, acc="")
                bars[spec.name] = bar, clock()
            bar, begun = bars[spec.name]
            if done:
                results[spec.name] = run.result()
                write_result(out, spec, results[spec.name], run.files())
                samples += run.total * spec.batch_size
                progress.remove_task(bar)
                rate = samples / max(clock() - started, 1e-9)
                acc = f"acc {run.evaluator.accuracy():.1f}"  # of the run that ended last
                progress.update(overall, advance=1, rate=rate, acc=acc)
            elif show and step % 50 == 0:
                rate = step * spec.batch_size / max(clock() - begun, 1e-9)
                acc = f"acc {run.evaluator.accuracy():.1f}"
                progress.update(bar, completed=step, rate=rate, acc=acc)
    return [results[spec.name] for spec in specs]
