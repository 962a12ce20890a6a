"""Estimates of how long runs take, from finished runs of the same kind or a few timed steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dualcba.data import Dataset
from dualcba.engine import Engine, resolve_device
from dualcba.evaluation import Evaluator
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import Load, few_threads
from dualcba.experiments.settings import parse_settings
from dualcba.experiments.spec import Spec
from dualcba.experiments.versions import device_name
from dualcba.options import Hardware

TEST_SAMPLES = 32  # per task, for the timing
ENOUGH = 1.0  # seconds of timed steps
BUDGET = 20.0  # seconds for all timing; afterwards similar kinds of runs share one timing
WINDOW = 300.0  # seconds of recent progress to estimate the time left from


@dataclass(frozen=True)
class Pace:
    """Seconds per training step, and per sample in evaluation."""

    step: float
    sample: float


@dataclass(frozen=True)
class Estimate:
    """Seconds for all runs, and the numbers of runs estimated from finished runs and by timing."""

    seconds: float
    finished: int
    timed: int


def estimate(
    specs: Sequence[Spec], results: Sequence[dict[str, Any]], load: Load, hardware: Hardware
) -> Estimate:
    """Estimate the time of runs one after another."""
    device = device_name(resolve_device(hardware.device))
    known: dict[tuple[Any, ...], list[float]] = {}
    for result in results:
        timed = "total" in result["seconds"]
        if timed and result["versions"].get("device") == device:
            known.setdefault(_kind(result["spec"]), []).append(result["seconds"]["total"])
    paces: dict[tuple[Any, ...], Pace] = {}
    total, finished, begun = 0.0, 0, time.perf_counter()
    for spec in specs:
        if seconds := known.get(_kind(spec.to_dict())):
            total += sum(seconds) / len(seconds)
            finished += 1
            continue
        family = (spec.dataset, spec.network, spec.method, *parse_settings(spec.setting))
        if family not in paces:
            alike = [pace for other, pace in paces.items() if other[:2] == family[:2]]
            spent = time.perf_counter() - begun > BUDGET
            borrow = bool(alike) and spent
            with few_threads([spec]):
                paces[family] = _mean(alike) if borrow else measure(spec, load(spec), hardware)
        total += _seconds(spec, load(spec), paces[family])
    return Estimate(total, finished, len(specs) - finished)


def _mean(paces: Sequence[Pace]) -> Pace:
    n = len(paces)
    return Pace(sum(p.step for p in paces) / n, sum(p.sample for p in paces) / n)


def _kind(spec: dict[str, Any]) -> tuple[Any, ...]:
    names = (
        "dataset", "network", "method", "setting", "epochs", "batch_size", "memory_batch",
        "optimizer", "eval_every",
    )  # fmt: skip
    return tuple(spec.get(name) for name in names)


def measure(spec: Spec, data: Dataset, hardware: Hardware) -> Pace:
    """Time a small evaluation and a few steps of the second task, including outer steps."""
    spec = dataclasses.replace(spec, eval_every=0, real_time=False, relative_cost=None)
    if "offline" in parse_settings(spec.setting):
        spec = dataclasses.replace(spec, epochs=1)
    run = Run(spec, data, hardware)
    cuda = run.learner.device.type == "cuda"
    window, enough = (10, math.inf) if cuda else (5, ENOUGH)  # every fifth step has an outer step
    run.stream = [dataclasses.replace(t, test=t.test[:TEST_SAMPLES]) for t in run.stream[:2]]
    lengths = (2, 2 * window + 1) if len(run.stream) > 1 else (2 * window + 1,)
    run.schedule = [[p[0].first(n)] for p, n in zip(run.schedule, lengths, strict=False)]
    run.evaluator = Evaluator(run.learner, run.data, run.stream)
    steps = run.steps()
    for _ in range(run.total - 2 * window - 1):
        next(steps)
    first = _time(steps, window, run.engine, enough)  # may include one-off preparation
    again = _time(steps, window, run.engine, enough)
    count, seconds = again if again[0] else first
    return Pace(seconds / count, _evaluation(run))


def _time(steps: Iterator[int], n: int, engine: Engine, enough: float) -> tuple[int, float]:
    """Take the next n steps, or fewer after `enough` seconds; return their number and seconds."""
    engine.finish()
    begun, count = time.perf_counter(), 0
    for count, _ in enumerate(islice(steps, n), 1):  # noqa: B007
        engine.finish()
        if time.perf_counter() - begun > enough:
            break
    return count, time.perf_counter() - begun


def _evaluation(run: Run) -> float:
    for _ in range(2):  # the first may include one-off preparation
        begun = time.perf_counter()
        run.evaluator.evaluate("end")
        run.engine.finish()
        seconds = time.perf_counter() - begun
    passed = 2 * len(run.evaluator.x) + min(run.spec.buffer, run.learner.memory.seen)
    return seconds / passed


def _seconds(spec: Spec, data: Dataset, pace: Pace) -> float:
    tasks = spec.tasks if isinstance(spec.tasks, int) else len(spec.tasks)
    steps = len(data.train_y) // spec.batch_size * spec.epochs
    tests = len(data.test_y)
    samples = (tasks + 1.0) * (2 * tests + spec.buffer)
    if spec.eval_every:
        so_far = tests * (tasks + 1) / tasks  # BN and IBN, each on half of the tasks on average
        samples += steps / spec.eval_every * (so_far + spec.buffer)
    return steps * pace.step + samples * pace.sample


@dataclass
class Remaining:
    """The time left of several runs, estimated from their pace in the last minutes.

    Runs that have not begun count with the mean length of the others.


    >>> rest = Remaining(runs=2)
    >>> rest.update("a", 1, 100, now=0.0)
    >>> rest.update("a", 51, 100, now=100.0)
    >>> rest.words(100.0)
    'about 5 min left'
    """

    runs: int
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The number of steps done and of all steps, for each run."""

    done: int = 0
    """Steps done since the start, without those before a checkpoint."""

    history: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, name: str, step: int, total: int, now: float) -> None:
        """Record the progress of a run at time `now` in seconds."""
        before, _ = self.steps.get(name, (step, total))
        self.steps[name] = step, total
        self.done += max(0, step - before)
        self.history.append((now, self.done))
        while len(self.history) > 2 and self.history[1][0] <= now - WINDOW:
            self.history.popleft()

    def seconds(self, now: float) -> float | None:
        """Return the time left in seconds, or None if it is not known yet."""
        if not self.history or self.done == self.history[0][1]:
            return None
        begun, before = self.history[0]
        left = sum(total - step for step, total in self.steps.values())
        mean = sum(total for _, total in self.steps.values()) / len(self.steps)
        left_in_all = left + mean * (self.runs - len(self.steps))
        return left_in_all * (now - begun) / (self.done - before)

    def words(self, now: float) -> str:
        """Return the time left as text; empty if it is unknown or zero."""
        left = self.seconds(now)
        return "" if not left else f"about {in_words(left)} left"


def in_words(seconds: float) -> str:
    """Return a duration as text.

    >>> in_words(42), in_words(600), in_words(9000), in_words(400_000)
    ('42 s', '10 min', '2 h 30 min', '4 d 15 h')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
