"""Runs in several processes: the same results, and a clean end whatever happens."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualcba.experiments import Hardware, Loader, Result, Run, Spec
from dualcba.experiments.pool import (
    RunUpdate,
    cores,
    process_count,
    run_specs,
    run_specs_in_processes,
)
from dualcba.experiments.scheduler import few_threads, run_all
from dualcba.experiments.store import read_results

CPU = Hardware(device="cpu")


def specs(*methods: str, **given: Any) -> list[Spec]:
    fields: dict[str, Any] = {"dataset": "digits", "eval_every": 0, "batch_size": 32} | given
    return [Spec(method=m, seed=k, **fields) for m in methods for k in (0, 1)]


def timeless(out: Path) -> list[Result]:
    return [replace(r, seconds={}) for r in read_results(out).values()]


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    wanted = specs("er", "er-dual-cba", record=["predictions"])
    alone = list(run_specs(wanted, Loader(), CPU, tmp_path / "1"))
    shared = list(run_specs_in_processes(wanted, Loader(), CPU, tmp_path / "2", 2))
    done = [news for news in shared if news.result is not None]
    assert {n.spec.name for n in done} == {spec.name for spec in wanted}
    assert len([n for n in alone if n.result]) == len(done) == 4
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")
    parts = [sorted(p.relative_to(tmp_path / k) for p in (tmp_path / k).rglob("*")) for k in "12"]
    assert parts[0] == parts[1]
    a, b = (next((tmp_path / k).glob("*dual*/*.safetensors")).read_bytes() for k in "12")
    assert a == b
    assert not multiprocessing.active_children()


def test_processes_end_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    list(run_specs_in_processes(specs("er"), Loader(), CPU, tmp_path, 2))
    assert capfd.readouterr() == ("", "")


def test_what_stops_a_run_is_raised_here(tmp_path: Path) -> None:
    wrong = specs("er", tasks=11)
    with pytest.raises(ValueError, match="11") as caught:
        list(run_specs_in_processes(wrong, Loader(), CPU, tmp_path, 2))
    assert "Traceback" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_ended_is_one_clear_line(tmp_path: Path) -> None:
    source = run_specs_in_processes(specs("er", "er-cba"), Loader(), CPU, tmp_path, 2)
    assert isinstance(next(source), RunUpdate)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(ChildProcessError, match=r"ended from outside.*fewer --jobs"):
        list(source)


def test_an_end_in_the_middle_ends_the_processes(tmp_path: Path) -> None:
    source = run_specs_in_processes(specs("er"), Loader(), CPU, tmp_path, 2)
    next(source)
    assert len(multiprocessing.active_children()) == 2
    source.close()
    assert not multiprocessing.active_children()
    assert not list(tmp_path.rglob(".draft-*"))


def test_small_networks_take_one_thread_while_they_run(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        source = run_specs(specs("er"), Loader(), CPU, tmp_path)
        next(source)
        assert torch.get_num_threads() == 1
        source.close()
        assert torch.get_num_threads() == 2
        for large in (specs("er", network="resnet18-slim"), []):
            with few_threads([*large, *specs("er")]):
                assert torch.get_num_threads() == (2 if large else 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("abreast", [1, 2])
def test_so_many_runs_take_turns(abreast: int) -> None:
    turns = islice(run_all(specs("er", "er-cba"), Loader(), CPU, abreast=abreast), 5)
    assert len({run.spec.name for run, _ in turns}) == abreast


def test_a_run_is_gone_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once may be more than a GPU has room for."""
    made: list[weakref.ref[Run]] = []

    def make(*given: Any, **more: Any) -> Run:
        assert not any(ref() for ref in made)
        one = Run(*given, **more)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr("dualcba.experiments.scheduler.Run", make)
    gc.disable()
    try:
        done = list(run_specs(specs("er-dual-cba", "bic"), Loader(), CPU, tmp_path))
    finally:
        gc.enable()
    assert len(made) == len([news for news in done if news.result]) == 4


def test_how_many() -> None:
    assert process_count(None, 3, CPU) == 1  # a process takes seconds to begin
    assert process_count(None, 1000, CPU) == cores()
    assert process_count(None, 1000, CPU, abreast=2) == 1
    assert [process_count(jobs, 3, CPU) for jobs in (1, 2, 9)] == [1, 2, 3]


def test_a_gpu_takes_runs_side_by_side_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr("dualcba.experiments.pool.resolve_device", lambda _: cuda)
    assert process_count(None, 1000, Hardware()) == 1
    with pytest.raises(ValueError, match="jobs is 2, expected 1 on a GPU, where --abreast"):
        process_count(2, 1000, Hardware())


def test_without_news_only_results(tmp_path: Path) -> None:
    news = list(run_specs(specs("er"), Loader(), CPU, tmp_path, every=0))
    assert [n.result is not None for n in news] == [True, True]
    assert all(n.step == n.total for n in news)


def test_another_process_refuses_data_that_has_changed(tmp_path: Path) -> None:
    """A worker loads the dataset itself, perhaps after it was overwritten."""
    path, x, y = tmp_path / "own.npz", np.zeros((20, 2), np.float32), np.arange(20) % 4
    np.savez(path, x=x, y=y)
    spec, load = Spec(dataset=str(path), network="mlp"), Loader()
    data = load(spec)
    assert copy(load)(spec).digest == data.digest
    np.savez(path, x=x + 1, y=y)
    with pytest.raises(ValueError, match=r"own.npz has changed: digest .* expected .*--out$"):
        copy(load)(spec)
