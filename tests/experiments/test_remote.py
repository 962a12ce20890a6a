"""Runs on Ray and through submitit: the results of local runs, whatever happens to workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Hardware, Loader, Result, Spec
from dualcba.experiments.checkpoints import checkpoint_paths
from dualcba.experiments.pool import run_specs
from dualcba.experiments.store import read_results, result_path
from dualcba.options import ExecutionOptions

CPU = Hardware(device="cpu")
KEPT: dict[str, Any] = {"device": "cpu", "checkpoint_every": "5steps"}


def specs(seeds: int = 12) -> list[Spec]:
    fields: dict[str, Any] = {"dataset": "digits", "eval_every": 0, "batch_size": 32, "tasks": 2}
    return [Spec(method=m, seed=k, **fields) for k in range(seeds) for m in ("er", "er-dual-cba")]


def timeless(out: Path) -> dict[str, Result]:
    return {p.name: replace(r, seconds={}) for p, r in read_results(out).items()}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The results of the 24 runs in this process."""
    out = tmp_path_factory.mktemp("local")
    list(run_specs(specs(), Loader(), CPU, out))
    return timeless(out)


def descendants(wanted: Callable[[str], bool]) -> list[int]:
    """The processes below this one with such a command line."""
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(OSError):
            parents[pid] = int((folder / "stat").read_text().rsplit(")")[-1].split()[1])
            words[pid] = (folder / "cmdline").read_text()

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and ours(parents[pid]))

    return [pid for pid, text in words.items() if wanted(text) and ours(pid)]


# ---------------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of Ray with one core each; the driver is connected to the first."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)
    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        two.add_node(num_cpus=1)
        ray.init(address=two.address, log_to_driver=False, logging_level="ERROR")
        yield two
    finally:
        ray.shutdown()
        two.shutdown()
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own


def workers() -> list[int]:
    """The processes below this one that work for Ray."""
    return descendants(lambda words: words.startswith("ray::_work"))


def kill_one_inside_a_run(out: Path, wanted: list[Spec]) -> bool:
    """Kill a worker if each of them is inside a run that has a checkpoint; return whether."""
    pids = workers()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    kept = [spec for spec in wanted if checkpoint_paths(out / spec.name)]
    inside = [spec for spec in kept if not result_path(out, spec).exists()]
    kill = len(pids) == len(inside) > 0
    for k, pid in enumerate(pids):
        os.kill(pid, signal.SIGKILL if kill and k == 0 else signal.SIGCONT)
    return kill


def test_a_killed_worker_and_a_lost_node(
    cluster: Any, local: dict[str, Result], tmp_path: Path
) -> None:
    from dualcba.experiments.on_ray import run_specs_on_ray

    wanted, complete, killed, notes = specs(), 0, False, []
    options = ExecutionOptions(on="ray", **KEPT)
    for update in run_specs_on_ray(wanted, Loader(), options, tmp_path, every=1):
        notes += [update.note] if update.note else []
        if update.result is not None:
            complete += 1
            assert update.result["accuracy_matrix"] == local[update.spec.name].accuracy_matrix
            if complete == 12:
                (second,) = cluster.worker_nodes
                cluster.remove_node(second)
        elif complete > 4 and not killed:
            killed = kill_one_inside_a_run(tmp_path, wanted)
    assert killed
    assert any("continues after" in note for note in notes)
    assert complete == 24
    assert timeless(tmp_path) == local
    assert not [p for s in wanted for p in checkpoint_paths(tmp_path / s.name)]


def test_data_are_shared_and_a_failure_is_told(cluster: Any, tmp_path: Path) -> None:
    """A validation split, from the object store; a run that fails does not stop the others."""
    from dualcba.experiments.on_ray import run_specs_on_ray

    given: dict[str, Any] = {"method": "er", "dataset": "digits", "eval_every": 0, "tasks": 2}
    wrong, split = Spec(**given | {"tasks": 11}), Spec(**given, validation=0.2)
    failed: dict[str, str] = {}
    options = ExecutionOptions(on="ray", **KEPT)
    tell = lambda spec, error: failed.update({spec.name: str(error)})  # noqa: E731
    updates = run_specs_on_ray([wrong, split], Loader(), options, tmp_path / "1", failed=tell)
    assert [update.spec.name for update in updates if update.result] == [split.name]
    assert list(failed) == [wrong.name]
    assert "11" in failed[wrong.name]
    list(run_specs([split], Loader(), CPU, tmp_path / "2"))
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")


def test_cancelled_tasks_leave_a_checkpoint(cluster: Any, tmp_path: Path) -> None:
    from dualcba.experiments.on_ray import run_specs_on_ray

    long = Spec(method="er", dataset="digits", batch_size=1, tasks=1, epochs=50, eval_every=0)
    options = ExecutionOptions(on="ray", device="cpu", checkpoint_every="1h")
    updates = run_specs_on_ray([long], Loader(), options, tmp_path, every=10)
    next(updates)
    updates.close()
    assert not (tmp_path / long.name / "result.json").exists()  # it was not complete by then
    assert len(checkpoint_paths(tmp_path / long.name)) == 1


def test_what_no_machine_has_is_refused(cluster: Any, tmp_path: Path) -> None:
    from dualcba.experiments.on_ray import run_specs_on_ray

    for given, says in (
        ({"device": "cuda"}, "device is 'cuda', expected 'cpu': the Ray cluster has no GPU"),
        ({"device": "cuda:1"}, "device is 'cuda:1', expected 'cuda' on Ray"),
        ({"cpus_per_task": 99}, "a task needs 99 CPU, expected at most 1 CPU"),
    ):
        options = ExecutionOptions(on="ray", **given)
        with pytest.raises(ValueError, match=says):
            next(run_specs_on_ray(specs(1), Loader(), options, tmp_path))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- submitit


def test_the_same_through_submitit(local: dict[str, Result], tmp_path: Path) -> None:
    """The job is preempted inside a run: it writes a checkpoint and goes on from it."""
    pytest.importorskip("submitit")
    from dualcba.experiments.on_slurm import run_specs_on_slurm

    options = ExecutionOptions(
        on="slurm", slurm={"cluster": "local"}, jobs=1, device="cpu", checkpoint_every="1h"
    )
    source = run_specs_on_slurm(specs(), Loader(), options, tmp_path, every=5)
    complete, notes = 0, []
    moments = [4, 10, 16]  # the signal may come between two runs, and then another is sent
    for update in source:
        notes += [update.note] if update.note else []
        complete += update.result is not None
        inside = any("continues after" in note for note in notes)
        if moments and complete == moments[0] and not inside:
            moments.pop(0)
            os.kill(job_process(), signal.SIGUSR2)
    assert complete == 24
    assert inside
    assert timeless(tmp_path) == local
    assert not [p for s in specs() for p in checkpoint_paths(tmp_path / s.name)]


def job_process() -> int:
    """A process below this one that does a job of submitit."""
    return descendants(lambda words: "submitit.core._submit" in words)[0]
