"""Jobs for workers on other machines, as used by `on_ray` and `on_slurm`.

All machines must see the folder of the results under the same path. It has results and checkpoints,
so a run continues from its newest checkpoint on any machine that repeats its job.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from dualcba.engine.threads import threads
from dualcba.errors import install
from dualcba.experiments.matching import matches
from dualcba.experiments.pool import RunUpdate, missing_runs, run_specs, sendable
from dualcba.experiments.result import Result
from dualcba.experiments.scheduler import Load
from dualcba.experiments.spec import Spec
from dualcba.experiments.stopping import stop
from dualcba.experiments.store import make_folder, read_result, result_path
from dualcba.methods.files import import_again
from dualcba.options import ExecutionOptions, Hardware, definitions

EXTRAS = {"local": (), "ray": ("ray",), "slurm": ("submitit",)}
"""The modules that each place of execution needs; the extra has the same name."""

PLACES = {
    "ray_address": ("ray",), "slurm": ("slurm",), "cpus_per_task": ("ray", "slurm"),
    "gpus_per_task": ("ray", "slurm"),
}  # fmt: skip
"""The places of execution that support an option."""

Send = Callable[[RunUpdate], None]
Failure = tuple[Spec, Exception]


def check_place(options: ExecutionOptions) -> None:
    """Raise a ValueError if an extra for `on` is missing, or an option does not apply to it."""
    for module in EXTRAS[options.on]:
        if find_spec(module) is None:
            given = f"on is {options.on!r} and {module} is missing"
            raise ValueError(f"{given}, expected {install(options.on)}")
    known = definitions(ExecutionOptions)
    for name, places in PLACES.items():
        given = getattr(options, name)
        if given and given != known[name].default and options.on not in places:
            wanted = " or ".join(map(repr, places))
            raise ValueError(f"{name} is {given!r} and on is {options.on!r}, expected {wanted}")


@dataclass(frozen=True)
class Job:
    """The runs of one worker with their options; picklable."""

    specs: tuple[Spec, ...]
    load: Load
    options: ExecutionOptions
    out: Path
    every: int
    """Steps between updates, as in `run_specs`."""
    folder: Path
    """The folder that relative paths of specs refer to, if it exists."""


def make_jobs(
    specs: Sequence[Spec], load: Load, options: ExecutionOptions, out: Path, every: int, size: int
) -> list[Job]:
    """Make the folder of the results; return jobs with `size` specs each."""
    make_folder(out)
    parts = [tuple(specs[k : k + size]) for k in range(0, len(specs), size)]
    return [Job(part, load, options, out.absolute(), every, Path.cwd()) for part in parts]


def run_job(job: Job, send: Send, signals: Sequence[int] | None = None) -> list[Failure]:
    """Run the specs of a job in this process, send their updates, and return the failures.

    If the job is repeated, complete runs are only reported. On each of `signals` (by default those
    of `stop`), the runs write checkpoints before the signal takes effect.
    """
    failures: list[Failure] = []

    def add(spec: Spec, error: Exception) -> None:
        failures.append((spec, sendable(error)))

    try:
        if not job.out.is_dir():
            where = f"{job.out} is missing on {socket.gethostname()}"
            raise FileNotFoundError(f"{where}, expected a folder that all machines share, as --out")
        for spec in job.specs:
            import_again(spec.imports)
        left = [spec for spec in job.specs if not _report_complete(job.out, spec, send)]
        with threads(job.options.cpus_per_task), _inside(job.folder):
            _run(job, left, send, add, signals)
    except Exception as error:
        known = {spec.name for spec, _ in failures}
        for spec in job.specs:
            if spec.name not in known and finished(job.out, spec) is None:
                add(spec, error)
    return failures


def _run(
    job: Job,
    specs: Sequence[Spec],
    send: Send,
    add: Callable[[Spec, Exception], None],
    signals: Sequence[int] | None,
) -> None:
    options, kept = job.options, job.options.checkpoints
    with stop.listening(signals) if kept else nullcontext():
        for update in run_specs(
            specs, job.load, hardware(options), job.out, abreast=options.abreast, every=job.every,
            failed=add, checkpoints=kept, watch=options.watch,
        ):  # fmt: skip
            send(update)


def hardware(options: ExecutionOptions) -> Hardware:
    """Return the hardware of options."""
    return Hardware(device=options.device, engine=options.engine, precision=options.precision)


def finished(out: Path, spec: Spec) -> Result | None:
    """Return the result of a spec in its folder, if it is complete."""
    try:
        result = read_result(result_path(out, spec))
    except (OSError, ValueError):
        return None
    return result if result.seed == spec.seed and matches(result, spec) else None


def _report_complete(out: Path, spec: Spec, send: Send) -> bool:
    """Send the result of a run if it is complete; return whether it is."""
    result = finished(out, spec)
    if result is not None:
        send(complete_update(spec, result))
    return result is not None


def complete_update(spec: Spec, result: Result) -> RunUpdate:
    """Return the last update of a run whose result is in the store."""
    return RunUpdate(spec, 1, 1, None, result.to_dict())  # of a whole of one step


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    with chdir(folder) if os.access(folder, os.X_OK) else nullcontext():
        yield


class Followed:
    """Tracks which runs are complete, failed or lost, from the updates of workers.

    A repeated job sends updates again; those of complete runs are filtered out.
    """

    def __init__(
        self, specs: Sequence[Spec], failed: Callable[[Spec, Exception], None] | None
    ) -> None:
        self.specs, self.failed = specs, failed
        self.done: set[str] = set()
        self.lost: list[Spec] = []

    def new(self, update: RunUpdate) -> bool:
        """Return whether the run of an update was not complete before."""
        known = update.spec.name in self.done
        if update.result is not None:
            self.done.add(update.spec.name)
        return not known

    def fail(self, failures: Sequence[Failure]) -> None:
        """Report failed runs, or raise the first error if there is no function to report to."""
        for spec, error in failures:
            if self.failed is None:
                raise error
            self.failed(spec, error)

    def lose(self, job: Job, complete: Sequence[RunUpdate] = ()) -> None:
        """Record the runs of a lost job, except those known to be complete."""
        known = self.done | {update.spec.name for update in complete}
        self.lost += [spec for spec in job.specs if spec.name not in known]

    def check(self, out: Path, why: str) -> None:
        """Raise a ChildProcessError that names the lost runs, if there are any."""
        if self.lost:
            raise ChildProcessError(missing_runs(self.lost, len(self.specs), out, why))


def on_any_gpu(options: ExecutionOptions, device: str) -> ExecutionOptions:
    """Return options with the device of a worker; `abreast` applies only to GPUs."""
    abreast = options.abreast if device == "cuda" else 1
    return replace(options, device=device, abreast=abreast)
