"""Runs on Ray and through submitit: the results of local runs, whatever happens to workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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


def specs(seeds: int = 12, **given: Any) -> list[Spec]:
    fields: dict[str, Any] = {"dataset": "digits", "eval_every": 0, "batch_size": 32} | given
    return [Spec(method=m, seed=k, **fields) for k in range(seeds) for m in ("er", "er-dual-cba")]


def timeless(out: Path) -> dict[str, Result]:
    return {p.name: replace(r, seconds={}) for p, r in read_results(out).items()}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The results of the 24 runs in this process."""
    out = tmp_path_factory.mktemp("local")
    list(run_specs(specs(), Loader(), CPU, out))
    return timeless(out)


# ---------------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of Ray with one core each; the driver is connected to the first."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        two.add_node(num_cpus=1)
        ray.init(address=two.address, log_to_driver=False, logging_level="ERROR")
        yield two
    finally:
        ray.shutdown()
        two.shutdown()


def workers() -> list[int]:
    """The processes below this one that work for Ray."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")")[-1].split()[1]
            )
            names[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and ours(parents[pid]))

    return [pid for pid, name in names.items() if name.startswith("ray::_work") and ours(pid)]


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
    assert any("goes on after" in note for note in notes)
    assert complete == 24
    assert timeless(tmp_path) == local
    assert not [p for s in wanted for p in checkpoint_paths(tmp_path / s.name)]
