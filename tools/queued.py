"""Run rows of several experiments in the order of a plan, in one or more processes.

usage: python -m tools.queued PLAN.toml OUT [--data-dir DIR] [--abreast 5] [--seconds 600]
           [--have results]

The plan names parts, the most important one first:

    [parts.tiny-semi]
    experiment = "semi"             # a name of `dualcba list experiments`
    dataset = "tiny-imagenet"       # and `column`, `rows`, `seeds`, `first_seed`: as in `reproduce`
    adaptors = ["", "dual-cba"]     # only methods with these; "" is a method without one
    seeds = 1

Each part has a folder of runs below OUT, for `tools.collect`; runs that train a class-agnostic part
for others are in OUT/donors. Several processes with the same OUT share the work: each run belongs
to the process that holds its lock, which is released when the process ends. A run waits until its
dataset is available. `--have` skips runs whose scores are in a folder of results. A run does not
begin if, at the pace so far, it would exceed `--seconds`. Runs that are in progress when the time
is over are abandoned, and a later call starts them again. Each complete run prints a line.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments import Hardware, Loader, Result, Spec, read_results, read_toml
from dualcba.experiments.curves import curve_files
from dualcba.experiments.matching import Index
from dualcba.experiments.paper.catalogue import named
from dualcba.experiments.paper.coverage import Wanted, merged, ready_spec
from dualcba.experiments.paper.selection import choose
from dualcba.experiments.run import Run
from dualcba.experiments.store import LOCK, result_path, run_folder, write_result
from dualcba.io import only_process
from tools.collected import read_all

DONORS = "donors"
KEYS = ("experiment", "dataset", "column", "rows", "adaptors", "seeds", "first_seed", "scale")
PAUSE = 1.0
"""Seconds between two attempts to begin runs."""


@dataclass(frozen=True)
class Planned:
    """A run of a part."""

    part: str
    wanted: Wanted


@dataclass
class Active:
    """A run in progress, and the lock on it."""

    planned: Planned
    run: Run
    steps: Iterator[int]
    lock: ExitStack


def read_plan(path: Path, have: Sequence[Result] = ()) -> list[Planned]:
    """Return all runs in order, except those with results in `have`.

    A run that loads a class-agnostic part comes after the run that trains it. A run of several
    parts belongs to the first.
    """
    there = Index(have)
    found: dict[tuple[bool, str, str | None], Planned] = {}

    def add(part: str, one: Wanted) -> None:
        found.setdefault((part == DONORS, one.spec.name, one.donor), Planned(part, one))

    for part, given in read_toml(path).get("parts", {}).items():
        for key in given:
            if key not in KEYS:
                raise ValueError(unknown(f"key of parts.{part}", key, KEYS))
        for one in wanted(given, there):
            if one.source is not None:
                add(DONORS, Wanted(one.source))
            add(part, one)
    return list(found.values())


def wanted(given: dict[str, Any], there: Index) -> list[Wanted]:
    """Return the missing runs of a part, seed by seed."""
    scale = given.get("scale", "paper")
    rows = given.get("rows", ())
    chosen = choose(
        named(given["experiment"]), given.get("dataset"), scale, given.get("column"), rows
    )
    first = given.get("first_seed", 0)
    adaptors = given.get("adaptors")
    entries = [
        e
        for experiment in chosen
        for e in experiment.entries
        if adaptors is None or (e.spec.adaptor or "") in adaptors
    ]
    served = [{r.seed for r in there.serving(e)} for e in entries]
    return merged(
        Wanted(replace(e.spec, seed=seed), e.donor, e.scale)
        for seed in range(first, first + given.get("seeds", 1))
        for e, seeds in zip(entries, served, strict=True)
        if seed not in seeds
    )


@dataclass
class Queue:
    """The waiting runs, and those in progress in this process."""

    waiting: list[Planned]
    out: Path
    load: Loader
    hardware: Hardware = field(default_factory=Hardware)
    abreast: int = 1
    active: list[Active] = field(default_factory=list)
    steps: int = 0
    """The number of steps of all runs so far."""

    _looked: float = 0.0
    _first: float = 0.0
    _end: float = float("inf")

    def work(self, seconds: float) -> int:
        """Make all possible runs within `seconds`; return the number of complete ones."""
        self._end, done = time.monotonic() + seconds, 0
        try:
            while (self.waiting or self.active) and time.monotonic() < self._end:
                hope = self._begin()
                self._first = self._first or time.monotonic()
                for one in self.active[:]:
                    done += self._step(one)
                if not self.active and not hope:
                    break
                if not self.active:
                    time.sleep(PAUSE)
        finally:
            for one in self.active:
                one.lock.close()
        return done

    def _begin(self) -> bool:
        """Begin runs up to `abreast`; return whether others may begin later."""
        if time.monotonic() - self._looked < PAUSE:
            return True
        hope = False
        for planned in self.waiting[:]:
            if len(self.active) >= self.abreast:
                return True
            hope |= self._try(planned)
        self._looked = time.monotonic()
        return hope

    def _try(self, planned: Planned) -> bool:
        """Begin a run if possible; return whether it waits for data or another process."""
        folder, lock = self.out / planned.part, ExitStack()
        try:
            spec = self._ready(planned.wanted)
            data = self.load(spec)
            if not self.fits(len(data.train_y) * spec.epochs // spec.batch_size):
                return False
            lock.enter_context(only_process(run_folder(folder, spec) / LOCK))
        except (FileNotFoundError, BlockingIOError):
            return True
        self.waiting.remove(planned)
        if result_path(folder, spec).exists():
            lock.close()
            return False
        try:
            run = Run(spec, data, self.hardware, alone=self.abreast == 1)
        except Exception as error:
            self._failed(planned, error, lock)
        else:
            self.active.append(Active(planned, run, run.steps(), lock))
        return False

    def fits(self, steps: int) -> bool:
        """Return whether a run of `steps` steps would finish in time, with those in progress."""
        now = time.monotonic()
        if not self.steps or self._end == float("inf"):
            return True
        pace = self.steps / (now - self._first)  # steps per second of all runs together
        return steps * (len(self.active) + 1) / pace <= self._end - now

    def _ready(self, one: Wanted) -> Spec:
        donors = read_results(self.out / DONORS) if one.source is not None else {}
        return ready_spec(one, self.out, donors)

    def _step(self, one: Active) -> bool:
        """Take a step; return whether the run is complete and written."""
        try:
            if next(one.steps, None) is not None:
                self.steps += 1
                return False
            result = one.run.result()
            folder, files = self.out / one.planned.part, one.run.files() | curve_files(result)
            write_result(folder, one.run.spec, result, files)
        except Exception as error:
            self.active.remove(one)
            self._failed(one.planned, error, one.lock)
            return False
        self.active.remove(one)
        one.lock.close()
        print(line(one.planned.part, one.run.spec, result), flush=True)
        return True

    @staticmethod
    def _failed(planned: Planned, error: Exception, lock: ExitStack) -> None:
        lock.close()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"failed: {planned.part}, {planned.wanted.spec.name}: {reason}", file=sys.stderr)


def line(part: str, spec: Spec, result: dict[str, Any]) -> str:
    """Return a line on a complete run: ACC / FM under BN and under IBN."""
    scores = (result["scores"][statistics] for statistics in ("bn", "ibn"))
    values = ", ".join(f"{s['acc']:.1f} / {s['fm']:.1f}" for s in scores)
    where = f"{spec.dataset} {spec.buffer} {spec.setting}, seed {spec.seed}"
    return f"{part}: {spec.method}, {where}: {values} ({spec.name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--have", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--abreast", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    try:
        have = [] if args.have is None else [r for g in read_all(args.have) for r in g.results]
        waiting = read_plan(args.plan, have)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: {args.plan}: {error}")
    hardware = Hardware(device=args.device)
    queue = Queue(waiting, args.out, Loader(args.data_dir), hardware, args.abreast)
    done = queue.work(args.seconds)
    left = f"{len(queue.active)} left in progress, {len(queue.waiting)} not begun here"
    print(f"{done} complete here, {left}")


if __name__ == "__main__":
    main()
