"""Eight processes write into one store: nothing is lost, nothing is torn."""

from __future__ import annotations

import json
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from dualcba.experiments import Result, Spec, read_plan, read_results, write_plan, write_result
from dualcba.experiments.curves import CURVES, curve_files, curve_table
from dualcba.experiments.runs import remove_run, stored_runs

PROCESSES, OWN = 8, 12
SHARED = [Spec(method="er-ace", seed=k) for k in range(4)]
"""Runs that all processes write, as two calls of one command would."""


def made(spec: Spec) -> dict[str, object]:
    matrix = [[float((spec.seed + k) % 100)] * 5 for k in range(5)]
    points = list(range(40))
    curves = {"step": points, "task": [4] * 40, "bn": [matrix[0]] * 40, "ibn": []}
    scores = {"bn": {"acc": matrix[0][0]}}
    return Result(spec, spec.seed, scores, {"bn": matrix}).to_dict() | {"anytime": curves}


def own(process: int) -> list[Spec]:
    return [Spec(method="er", buffer=10 + process, seed=k) for k in range(OWN)]


def work(out: Path, process: int, together: Barrier) -> None:
    together.wait()
    write_plan(out, [*own(process), *SHARED])
    for spec in own(process):
        write_result(out, spec, made(spec), curve_files(made(spec)))
    for spec in SHARED:
        write_result(out, spec, made(spec), curve_files(made(spec)))
    remove_run(out / own(process)[0].name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_eight_processes(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(PROCESSES)
    workers = [fork.Process(target=work, args=(tmp_path, k, together)) for k in range(PROCESSES)]
    for worker in workers:
        worker.start()
    looks = 0
    while any(worker.is_alive() for worker in workers):  # a reader sees whole runs at any time
        assert not [run.problem for run in stored_runs([tmp_path]) if run.problem]
        looks += 1
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert looks > 0
    kept = [*(spec for k in range(PROCESSES) for spec in own(k)[1:]), *SHARED]
    assert {spec.name for spec in read_plan(tmp_path)} == {spec.name for spec in kept}
    results = read_results(tmp_path)
    assert {folder.name for folder in results} == {spec.name for spec in kept}
    for spec in kept:
        folder = tmp_path / spec.name
        assert sorted(p.name for p in folder.iterdir()) == [CURVES, "result.json"]
        assert json.loads((folder / "result.json").read_text()) == made(spec)
        assert (folder / CURVES).read_bytes() == curve_table(made(spec), spec.name)
    assert not list(tmp_path.rglob(".draft-*"))
