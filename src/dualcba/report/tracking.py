"""Log runs to trackers: progress, curves, scores and figures.

A tracker that fails is disabled with one warning; the runs continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from dualcba.errors import reason
from dualcba.experiments.pool import RunUpdate
from dualcba.experiments.result import Result
from dualcba.report.figures.registry import FIGURES
from dualcba.report.figures.style import render
from dualcba.report.results import collections
from dualcba.report.trackers import TrackedRun, Tracker, make_tracker

FIGURES_OF_A_RUN = ("anytime", "stability", "predictions", "posterior", "transitions", "alignment")


class Tracking:
    """Starts, updates and ends the trackers of runs. Without names it does nothing."""

    def __init__(self, names: Sequence[str], out: Path, warn: Callable[[str], None]) -> None:
        self.names = list(dict.fromkeys(names))
        self.out = out
        self.warn = warn
        self.open: dict[str, dict[str, Tracker]] = {}  # by run and tracker

    def see(self, update: RunUpdate) -> None:
        """Log the progress or the result of a run."""
        if not self.names:
            return
        name = update.spec.name
        if name not in self.open:
            self._start(update)
        if update.result is None:
            live = {} if update.accuracy is None else {"live/accuracy": update.accuracy}
            self._log(name, update.step, live)
        else:
            self._finish(name, Result.from_dict(update.result))

    def close(self) -> None:
        """End the trackers of runs that have not finished."""
        for name in list(self.open):
            self._end(name, {}, {})

    def _start(self, update: RunUpdate) -> None:
        run = TrackedRun(self.out, update.spec.name, update.spec.to_dict())
        self.open[run.name] = {}
        for tracker in list(self.names):
            with self._disabled_if_failed(tracker):
                made = make_tracker(tracker)
                made.start(run)
                self.open[run.name][tracker] = made

    def _log(self, run: str, step: int, values: Mapping[str, float]) -> None:
        for name, tracker in self._working(run) if values else ():
            with self._disabled_if_failed(name):
                tracker.log(step, values)

    def _finish(self, run: str, result: Result) -> None:
        for step, values in curve_points(result):
            self._log(run, step, values)
        self._end(run, final_values(result), self._figures(result) if self._working(run) else {})

    def _end(self, run: str, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        for name, tracker in self._working(run):
            with self._disabled_if_failed(name):
                tracker.finish(scores, figures)
        del self.open[run]

    def _working(self, run: str) -> list[tuple[str, Tracker]]:
        """Return the trackers of a run that have not failed."""
        return [(name, one) for name, one in self.open[run].items() if name in self.names]

    def _figures(self, result: Result) -> dict[str, bytes]:
        try:
            return run_figures(result)
        except Exception as error:  # a failed figure must not stop the runs
            self.warn(f"figures for trackers are left out: {reason(error)}")
            return {}

    @contextmanager
    def _disabled_if_failed(self, tracker: str) -> Iterator[None]:
        """Disable a tracker with a warning if it raises; suppress what it prints."""
        try:
            with redirect_stdout(StringIO()):
                yield
        except Exception as error:
            self.names.remove(tracker)
            self.warn(f"{tracker} failed and is disabled, the runs continue: {reason(error)}")


# ---------------------------------------------------------------------- what is logged


def curve_points(result: Result) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield steps with the any-time accuracy of each task so far, in percent."""
    for k, step in enumerate(result.anytime.step):
        values: dict[str, float] = {}
        for statistics, points in result.anytime.accuracy.items():
            for task, accuracy in enumerate(points[k] if points else ()):
                values[f"anytime/{statistics}/task{task + 1}"] = accuracy
        yield step, values


def final_values(result: Result) -> dict[str, float]:
    """Return the measured scores, the final accuracy of each task, times and costs.

    >>> from dualcba.experiments import Spec
    >>> final_values(Result(Spec(), 0, {"bn": {"acc": 70.0, "fm": None}}, seconds={"total": 2.0}))
    {'bn/acc': 70.0, 'seconds/total': 2.0}
    """
    groups: dict[str, Mapping[str, float | None]] = {
        **result.scores,
        "seconds": result.seconds,
        "cost": result.cost,
    }
    found = {f"{group}/{k}": v for group, values in groups.items() for k, v in values.items()}
    for statistics, matrix in result.accuracy_matrix.items():
        last = matrix[-1] if matrix else ()
        found |= {f"{statistics}/task{k}": accuracy for k, accuracy in enumerate(last, 1)}
    return {name: float(value) for name, value in found.items() if value is not None}


def run_figures(result: Result) -> dict[str, bytes]:
    """Return the figures of one run as PNG by name; figures without data are left out."""
    served = collections([result])[0].served
    drawn = [FIGURES[kind](served, kind, result.method)[0] for kind in FIGURES_OF_A_RUN]
    return {plot.name: render(plot, "png") for plots in drawn for plot in plots}
