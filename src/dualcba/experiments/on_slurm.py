"""Runs as an array job of Slurm, through submitit, whose local executor needs no Slurm.

A job that is preempted or reaches its time limit writes checkpoints and is put into the queue
again; its runs go on from there. Each job appends its updates to a file that the driver follows.
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
"""In the folder of the results: the scripts, logs and updates of jobs."""

POLL = 0.5
"""Seconds between two looks at the jobs."""

LARGEST_ARRAY = 1000
"""Jobs in an array: the usual limit of Slurm is 1001."""

TIME = 240
"""Minutes that a job has until it is put into the queue again."""

MOST_TIMEOUTS = 100
"""Times that a job may reach its time limit."""

TRIES = 2
"""Times that a job is submitted, if it is lost."""

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

    A job has `abreast` runs, or more if there are many. Closing the generator cancels the jobs.
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
    """Take what a job has returned, or that it was lost; return the results in the store."""
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
    """What submitit calls in a job; on preemption it is called again."""

    job: Job
    path: Path
    """The file of the updates, a line each."""
    read: int = field(init=False)
    """Bytes that the driver has read; those of earlier calls are left out."""

    def __post_init__(self) -> None:
        self.read = self.path.stat().st_size if self.path.exists() else 0

    def __call__(self) -> list[Failure]:
        """Do the job; preemption and an interrupt let its runs write checkpoints first."""
        preempted = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        with self.path.open("a", encoding="utf-8") as file:

            def send(update: RunUpdate) -> None:
                file.write(_line(update))
                file.flush()

            return run_job(self.job, send, (preempted, signal.SIGINT))

    def checkpoint(self) -> Any:
        """Return what is put into the queue after a preemption: the same call."""
        return submitit.helpers.DelayedSubmission(self)

    def updates(self) -> Iterator[RunUpdate]:
        """Yield the updates that are new; a line that is being written is left for later."""
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
        if spec is None:  # a job of an earlier call still writes the file
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
    """Return submitit's executor with what a job needs and the parameters that were given."""
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
