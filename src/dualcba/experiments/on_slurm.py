"""Runs as an array job of Slurm through submitit, whose local executor works without Slurm.

A job that is preempted or reaches its time limit writes checkpoints and is queued again; its runs
continue from there. Each job appends its updates to a file that the driver reads.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from dualcba.errors import expected, reason
from dualcba.experiments.pool import EVERY, RunUpdate, cores
from dualcba.experiments.remote import (
    Failure,
    Followed,
    Job,
    complete_update,
    finished,
    make_jobs,
    on_any_gpu,
    run_job,
)
from dualcba.experiments.scheduler import Failed, Load
from dualcba.experiments.spec import Spec
from dualcba.options import ExecutionOptions

FOLDER = "submitit"
"""The subfolder of the results with scripts, logs and updates of jobs."""

POLL = 0.5
"""Seconds between two polls of the jobs."""

LARGEST_ARRAY = 1000
"""The largest number of jobs in an array; Slurm's usual limit is 1001."""

TIME = 240
"""Minutes until a job is stopped and queued again."""

MOST_TIMEOUTS = 100
"""How often a job may reach its time limit."""

TRIES = 2
"""How often a job is submitted if it is lost."""

LOST = f"their jobs ended without a result {TRIES} times, perhaps for their memory"


def run_specs_on_slurm(
    specs: Sequence[Spec],
    load: Load,
    options: ExecutionOptions,
    out: Path,
    *,
    every: int = EVERY,
    failed: Failed | None = None,
) -> Generator[RunUpdate, None, None]:
    """Run specs as jobs of an array and yield their updates; see `run_specs` for the arguments.

    A job has `abreast` runs, or more if there would be too many jobs. Closing the generator cancels
    the jobs.
    """
    local = _cluster(options) == "local"
    here = on_any_gpu(options, options.device.partition(":")[0])
    executor = _executor(here, out.absolute() / FOLDER)
    at_once = min(options.jobs or cores(), len(specs)) if local else LARGEST_ARRAY
    size = max(here.abreast, math.ceil(len(specs) / at_once))
    followed = Followed(specs, failed)
    for _ in range(TRIES):
        left = followed.lost or specs
        followed.lost = []
        yield from _follow(executor, make_jobs(left, load, here, out, every, size), followed)
        if not followed.lost:
            return
    followed.check(out, LOST)


def _follow(
    executor: Any, jobs: Sequence[Job], followed: Followed
) -> Generator[RunUpdate, None, None]:
    """Submit an array of jobs and yield their updates until all have ended."""
    calls = [Call(job, executor.folder / f"{job.specs[0].name}.jsonl") for job in jobs]
    waiting = dict(zip(_submit(executor, calls), calls, strict=True))
    try:
        while waiting:
            time.sleep(POLL)
            ended = [one for one in waiting if one.done()]  # before the last updates are read
            for call in waiting.values():
                yield from filter(followed.new, call.updates())
            for one in ended:
                yield from filter(followed.new, _end(one, waiting.pop(one).job, followed))
    finally:
        for one in waiting:
            one.cancel()


def _submit(executor: Any, calls: Sequence[Call]) -> list[Any]:
    try:
        with executor.batch():
            return [executor.submit(call) for call in calls]
    except FailedSubmissionError as error:
        raise ChildProcessError(
            f"sbatch refused the jobs: {' '.join(reason(error).split())}"
        ) from error


def _end(submitted: Any, job: Job, followed: Followed) -> list[RunUpdate]:
    """Handle the end of a job: report its failures or its loss, and return its stored results."""
    found = [(spec, finished(job.out, spec)) for spec in job.specs]
    complete = [complete_update(spec, result) for spec, result in found if result is not None]
    try:
        followed.fail(submitted.result())
    except (FailedJobError, UncompletedJobError):
        followed.lose(job, complete)
    return complete


# ---------------------------------------------------------------------- a job


@dataclass
class Call:
    """The function that submitit calls in a job, and again after a preemption."""

    job: Job
    path: Path
    """The file of updates, one per line."""
    read: int = field(init=False)
    """Bytes that the driver has read, or that an earlier call has written."""

    def __post_init__(self) -> None:
        self.read = self.path.stat().st_size if self.path.exists() else 0

    def __call__(self) -> list[Failure]:
        """Run the job; on preemption or an interrupt, its runs write checkpoints first."""
        preempted = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        with self.path.open("a", encoding="utf-8") as file:

            def send(update: RunUpdate) -> None:
                file.write(_line(update))
                file.flush()

            return run_job(self.job, send, (preempted, signal.SIGINT))

    def checkpoint(self) -> Any:
        """Return the submission after a preemption: this call again."""
        return submitit.helpers.DelayedSubmission(self)

    def updates(self) -> Iterator[RunUpdate]:
        """Yield new updates from complete lines of the file."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.read)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self.read += len(whole)
        specs = {spec.name: spec for spec in self.job.specs}
        for line in whole.splitlines():
            yield from self._update(specs, json.loads(line))

    def _update(self, specs: Mapping[str, Spec], content: dict[str, Any]) -> Iterator[RunUpdate]:
        spec = specs.get(content.pop("run"))
        if spec is None:  # from a job of an earlier call
            return
        if content.pop("complete"):
            result = finished(self.job.out, spec)
            if result is not None:
                step, total = content["step"], content["total"]
                yield RunUpdate(spec, step, total, content["accuracy"], result.to_dict())
        else:
            yield RunUpdate(spec, **content)


def _line(update: RunUpdate) -> str:
    content = {
        "run": update.spec.name,
        "step": update.step,
        "total": update.total,
        "accuracy": update.accuracy,
        "note": update.note,
        "complete": update.result is not None,
    }
    return json.dumps(content) + "\n"


# ---------------------------------------------------------------------- the cluster


def _cluster(options: ExecutionOptions) -> str:
    name = options.slurm.get("cluster", "slurm")
    if name not in ("slurm", "local"):
        raise ValueError(expected("cluster of --slurm", name, "'slurm' or 'local'"))
    if name == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "sbatch is missing, expected a machine of a Slurm cluster, or --slurm cluster=local"
        )
    return str(name)


def _executor(options: ExecutionOptions, folder: Path) -> Any:
    """Return submitit's executor with the resources of a job and the given parameters."""
    cluster = _cluster(options)
    executor = submitit.AutoExecutor(folder, cluster, slurm_max_num_timeout=MOST_TIMEOUTS)
    needs: dict[str, Any] = {"name": "dualcba", "timeout_min": TIME, "nodes": 1}
    needs |= {"cpus_per_task": options.cpus_per_task}
    if options.device == "cuda":
        needs |= {"gpus_per_node": _whole_gpus(options.gpus_per_task)}
    if options.jobs is not None:
        needs |= {"slurm_array_parallelism": options.jobs}
    shared = submitit.AutoExecutor._valid_parameters()
    for name, value in options.slurm.items():
        if name != "cluster":
            needs |= {name if name in shared else f"slurm_{name}": value}
    try:
        executor.update_parameters(**needs)
    except (NameError, ValueError, AssertionError, TypeError) as error:
        why = reason(error).splitlines()[0]
        raise ValueError(f"submitit refused --slurm: {why}") from None
    return executor


def _whole_gpus(count: float) -> int:
    if count != int(count):
        raise ValueError(expected("gpus_per_task", count, "a whole number on Slurm"))
    return int(count)
