"""Runs as tasks of Ray, on a new local cluster or on an existing one.

A task has one run, or `abreast` runs on a GPU as streams of one process. Ray repeats the task of a
lost worker; its runs continue from their checkpoints. Datasets are stored once per machine, in the
object store. Updates go through a queue on the driver's machine, which is not lost with a worker.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import signal
import socket
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from dualcba.data import Dataset
from dualcba.engine import resolve_device
from dualcba.errors import expected, reason
from dualcba.experiments.pool import EVERY, RunUpdate, cores
from dualcba.experiments.processes import in_main_thread
from dualcba.experiments.remote import Failure, Followed, Job, make_jobs, on_any_gpu, run_job
from dualcba.experiments.scheduler import Failed, Load
from dualcba.experiments.spec import Spec
from dualcba.options import ExecutionOptions

RETRIES = 3
"""How often the task of a lost worker is repeated."""

CANCELLING = 60.0
"""Seconds for a cancelled task to write its checkpoints, perhaps over a network."""

POLL = 0.2
"""Seconds between two polls of the queue."""

CONNECT = 10.0
"""Timeout in seconds to connect to a cluster."""

LOST = f"their workers were lost {RETRIES + 1} times, perhaps for their memory"


def run_specs_on_ray(
    specs: Sequence[Spec],
    load: Load,
    options: ExecutionOptions,
    out: Path,
    *,
    every: int = EVERY,
    failed: Failed | None = None,
) -> Generator[RunUpdate, None, None]:
    """Run specs as tasks of Ray and yield their updates; see `run_specs` for the arguments.

    An existing connection to Ray is used. Closing the generator cancels the tasks, which write
    checkpoints first.
    """
    with _cluster(options):
        here = on_any_gpu(options, _device(options.device))
        needs = {"CPU": float(here.cpus_per_task)}
        needs |= {"GPU": here.gpus_per_task} if here.device == "cuda" else {}
        _check_fits(needs)
        followed = Followed(specs, failed)
        jobs = make_jobs(specs, load, here, out, every, here.abreast)
        yield from _follow(jobs, needs, followed)
        followed.check(out, LOST)


def _follow(
    jobs: Sequence[Job], needs: Mapping[str, float], followed: Followed
) -> Generator[RunUpdate, None, None]:
    """Submit jobs and yield their updates until all have ended."""
    at_driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": at_driver})
    waiting = _submit(jobs, needs, queue)
    try:
        while waiting:
            ended, _ = ray.wait(list(waiting), timeout=POLL)
            updates = [pickle.loads(one) for one in queue.get_nowait_batch(queue.qsize())]
            for ref in ended:
                updates += _end(ref, waiting.pop(ref), followed)
            yield from filter(followed.new, updates)
    finally:
        _cancel(list(waiting))
        queue.shutdown(force=True)


def _submit(jobs: Sequence[Job], needs: Mapping[str, float], queue: Queue) -> dict[Any, Job]:
    """Put the datasets into the object store and submit a task for each job."""
    task = ray.remote(_work).options(
        num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=RETRIES
    )
    stored: dict[Key, Any] = {}
    waiting: dict[Any, Job] = {}
    for job in jobs:
        for spec in job.specs:
            if _key(spec) not in stored:
                stored[_key(spec)] = _share(job.load(spec))
        keys = list(dict.fromkeys(map(_key, job.specs)))
        waiting[task.remote(job, queue, keys, *[stored[key] for key in keys])] = job
    return waiting


def _work(
    job: Job, queue: Queue, keys: Sequence[Key], *arrays: Mapping[str, Any] | None
) -> tuple[list[RunUpdate], list[Failure]]:
    """Run a job in a worker of Ray; return its results and failures. Cancelling sends a SIGINT.

    The job never waits for Ray, because Ray gives the core of a waiting worker to another task.
    Results are returned in addition to updates, which may arrive after the end of the task.
    """
    complete: list[RunUpdate] = []

    def send(update: RunUpdate) -> None:
        queue.actor.put.remote(pickle.dumps(update))  # bytes: the queue need not import torch
        complete.extend([update] * (update.result is not None))

    shared = SharedData(dict(zip(keys, arrays, strict=True)), job.load)
    failures = run_job(replace(job, load=shared), send)
    return complete, failures


def _end(ref: Any, job: Job, followed: Followed) -> list[RunUpdate]:
    """Handle the end of a task: report its failures or its loss, and return its results."""
    try:
        complete, failures = ray.get(ref)
    except RayTaskError as error:  # such as dualcba not installed there
        complete, failures = [], [(spec, error.cause) for spec in job.specs]
    except RayError:
        followed.lose(job)
        return []
    followed.fail(failures)
    found: list[RunUpdate] = complete
    return found


def _cancel(tasks: list[Any]) -> None:
    """Cancel tasks and wait until they end."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=CANCELLING)


# ---------------------------------------------------------------------- the cluster


@contextmanager
def _cluster(options: ExecutionOptions) -> Iterator[None]:
    """Connect to a cluster, or start a local one until the end of the block."""
    if ray.is_initialized():
        yield
        return
    address = options.ray_address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    handler = signal.getsignal(signal.SIGTERM)
    where: dict[str, Any] = {"address": address or "local"}
    if address:
        if options.jobs is not None:
            wanted = "no value with --ray-address: the cluster defines the cores"
            raise ValueError(expected("jobs", options.jobs, wanted))
        _check_answers(address)
    else:
        where |= {"num_cpus": options.jobs or cores(), "include_dashboard": False}
    try:
        try:
            ray.init(**where, **quiet)
        except Exception as error:
            raise ConnectionError(_unreachable(address or "local", error)) from error
        if in_main_thread() and callable(handler):
            signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
        yield
    finally:
        ray.shutdown()
        if in_main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _check_answers(address: str) -> None:
    """Raise a ConnectionError unless HOST:PORT accepts a connection."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # such as `auto`, which Ray resolves
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT).close()
    except OSError as error:
        raise ConnectionError(_unreachable(address, error)) from error


def _unreachable(address: str, error: Exception) -> str:
    why = " ".join(reason(error).split())
    wanted = "the HOST:PORT of a cluster that `ray start --head` has started, as --ray-address"
    return f"no Ray cluster at {address!r}: {why}; expected {wanted}"


def _device(asked: str) -> str:
    """Return the device type of tasks; Ray chooses the device."""
    gpus = ray.cluster_resources().get("GPU", 0)
    if asked == "auto":
        return "cuda" if gpus else "cpu"
    if not asked.startswith("cuda"):
        return resolve_device(asked).type
    if asked != "cuda":
        raise ValueError(expected("device", asked, "'cuda' on Ray, which chooses the GPU"))
    if not gpus:
        raise ValueError(expected("device", asked, "'cpu': the Ray cluster has no GPU"))
    return asked


def _check_fits(needs: Mapping[str, float]) -> None:
    """Raise a ValueError if no machine of the cluster has the resources of a task."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(have.get(k, 0) >= v for k, v in needs.items()) for have in found):
        return
    text = " and ".join(f"{value:g} {name}" for name, value in needs.items())
    most = {name: max(have.get(name, 0) for have in found) for name in needs}
    has = " and ".join(f"{value:g} {name}" for name, value in most.items())
    raise ValueError(f"a task needs {text}, expected at most {has}, the most of a Ray machine")


# ---------------------------------------------------------------------- data


Key = tuple[str, float]
"""A dataset and its validation fraction."""


def _key(spec: Spec) -> Key:
    return spec.dataset, spec.validation


@dataclass
class SharedData:
    """Loads the dataset of a spec from arrays in the object store, without a copy.

    Memory-mapped files are loaded with `load`, since processes share them anyway.
    """

    stored: Mapping[Key, Mapping[str, Any] | None]
    load: Load

    def __call__(self, spec: Spec) -> Dataset:
        """Return the dataset of a spec."""
        arrays = self.stored[_key(spec)]
        return self.load(spec) if arrays is None else _from_arrays(arrays)


def _share(data: Dataset) -> Any:
    """Put a dataset into the object store; return None if it is a memory-mapped file."""
    if data.memory_mapped or (data.whole is not None and data.whole.memory_mapped):
        return None
    return ray.put(_as_arrays(data))


def _as_arrays(data: Dataset) -> dict[str, Any]:
    """Return the fields of a dataset with tensors as arrays, which Ray shares."""
    found = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
    whole = None if data.whole is None else _as_arrays(data.whole)
    arrays = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in found.items()}
    return arrays | {"whole": whole, "digest": data.digest}


def _from_arrays(arrays: Mapping[str, Any]) -> Dataset:
    """Return a dataset whose tensors share the memory of read-only arrays."""
    found, digest = dict(arrays), arrays["digest"]
    del found["digest"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        found = {
            k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in found.items()
        }
    if found["whole"] is not None:
        found["whole"] = _from_arrays(found["whole"])
    data = Dataset(**found)
    data.__dict__["digest"] = digest  # avoids computing it again
    return data
