"""The runs of a store: found whatever their state, compared, and removed whole."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import Result, Spec, read_plan, write_plan, write_result
from dualcba.experiments.runs import (
    DAMAGED,
    PLANNED,
    difference,
    open_run,
    removable,
    remove_run,
    stored_runs,
)
from dualcba.report.tables.runs import difference_tables

ONE, TWO, THREE = (Spec(method="er", seed=k) for k in range(3))


def made(spec: Spec, acc: float = 70.0) -> Result:
    scores = {"bn": {"acc": acc, "fm": None}, "ibn": {"acc": acc + 1}}
    return Result(spec, spec.seed, scores, versions={"torch": "2.13"}, seconds={"total": 1.0})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A complete run, a damaged one, one that is only planned, and one deeper below."""
    out = tmp_path / "a"
    write_plan(out, [ONE, TWO, THREE])
    write_result(out, ONE, made(ONE).to_dict())
    write_result(out, TWO, made(TWO).to_dict()).write_text("{")
    write_result(tmp_path / "b" / "deep", ONE, made(ONE).to_dict())
    return tmp_path


def test_every_run_is_found_in_its_state(store: Path) -> None:
    found = stored_runs([store / "b", store])
    assert [(run.folder.relative_to(store).parts[0], run.status) for run in found] == [
        ("a", "complete"), ("a", DAMAGED), ("a", PLANNED), ("b", "complete"),
    ]  # fmt: skip
    assert "is not JSON" in str(found[1].problem)
    first, _, planned, _ = (run.to_dict() for run in found)
    assert (first["scores"]["bn"]["acc"], first["seconds"], first["seed"]) == (70.0, 1.0, 0)
    assert (planned["method"], planned["seed"], planned["scores"]) == ("er", 2, None)


def test_a_damaged_plan_is_one_line_of_the_list(store: Path) -> None:
    (store / "a" / "plan.json").write_text('{"schema": 9, "specs": []}')
    (plan,) = (run for run in stored_runs([store]) if run.folder.name == "plan.json")
    assert plan.problem is not None
    assert plan.problem.endswith("the schema is 9, expected 1 or 2")


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is missing, expected a folder of runs"):
        stored_runs([tmp_path / "nowhere"])
    (tmp_path / "plan.json").touch()
    with pytest.raises(
        NotADirectoryError, match=r"plan\.json is a file, expected a folder of runs"
    ):
        stored_runs([tmp_path / "plan.json"])


def test_a_run_is_opened_by_its_folder_or_file(store: Path) -> None:
    folder = store / "a" / ONE.name
    assert open_run(folder) == open_run(folder / "result.json") == (folder, made(ONE))
    with pytest.raises(FileNotFoundError, match="is not a run, expected the folder of a run"):
        open_run(store / "a")


def test_what_two_runs_differ_in() -> None:
    other = replace(made(replace(ONE, lr=0.1), 72.5), versions={"torch": "2.6"})
    found = difference(made(ONE), other)
    assert found.spec == {"lr": (0.03, 0.1)}
    assert found.versions == {"torch": ("2.13", "2.6")}
    assert found.scores == {"bn": {"acc": (70.0, 72.5)}, "ibn": {"acc": (71.0, 73.5)}}
    assert not found.equal
    same = difference(made(ONE), replace(made(ONE), seconds={"total": 9.0}))
    assert same.equal
    assert not same.spec


def test_runs_on_other_data_differ_in_them() -> None:
    first, moved, changed = (
        replace(made(ONE), data=DataOrigin("own", path, digest * 64))
        for path, digest in (("/a.npz", "a"), ("/b.npz", "a"), ("/a.npz", "b"))
    )
    assert difference(first, first).data == {}
    assert difference(first, moved).data == {"path": ("/a.npz", "/b.npz")}
    assert difference(first, changed).data == {"digest": ("a" * 64, "b" * 64)}
    assert difference(made(ONE), first).data == {
        "path": (None, "/a.npz"), "digest": (None, "a" * 64)
    }  # fmt: skip
    table, _ = difference_tables(difference(made(ONE), changed))
    assert table.rows == (("data: path", "–", "/a.npz"), ("data: digest", "–", "b" * 12))


def test_a_removed_run_is_neither_there_nor_planned(store: Path) -> None:
    (folder,) = removable([store / "a" / ONE.name / "result.json"])
    remove_run(folder)
    assert not folder.exists()
    assert read_plan(store / "a") == [TWO, THREE]
    remove_run(store / "a" / TWO.name)  # a damaged one too
    remove_run(store / "b" / "deep" / ONE.name)  # where there is no plan
    assert [run.status for run in stored_runs([store])] == [PLANNED]


@pytest.mark.parametrize("plan", [True, False])
def test_a_run_that_cannot_be_removed_is_one_line(
    store: Path, plan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that can only be read, where the plan cannot be written either."""

    def refuse(path: object, *_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    if plan:
        monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    folder = store / "a" / ONE.name if plan else store / "b" / "deep" / ONE.name
    says = f"{folder} cannot be removed: Read-only file system, expected a run in a folder that "
    with pytest.raises(OSError, match=re.escape(says)) as error:
        remove_run(folder)
    assert ".draft" not in str(error.value)
    assert (folder / "result.json").exists()


def test_only_the_folder_of_one_run_is_removed(store: Path) -> None:
    for path in (store, store / "a", store / "a" / THREE.name):
        with pytest.raises(FileNotFoundError, match="is not a run"):
            removable([store / "a" / ONE.name, path])
    (store / "a" / ONE.name / "plan.json").write_text(json.dumps({"specs": []}))
    with pytest.raises(ValueError, match="holds other runs, expected the folder of one run"):
        removable([store / "a" / ONE.name])
    link = store / "link"
    link.symlink_to(store / "a" / TWO.name)
    with pytest.raises(FileNotFoundError, match="is not a run"):
        removable([link])


def test_a_run_can_be_removed_whose_dataset_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "own"
    data.mkdir()
    specs = [Spec(method="er", dataset=str(data), seed=k) for k in (0, 1)]
    write_plan(tmp_path, specs)
    done = write_result(tmp_path, specs[0], made(specs[0]).to_dict()).parent
    data.rmdir()
    assert [(r.folder.name, r.status) for r in stored_runs([tmp_path])] == [
        (specs[0].name, "complete"),
        (specs[1].name, PLANNED),
    ]
    remove_run(done)
    assert [r.folder.name for r in stored_runs([tmp_path])] == [specs[1].name]
    data.mkdir()
    assert read_plan(tmp_path) == specs[1:]


def test_a_run_in_a_folder_of_an_earlier_version_is_removed_from_the_plan(tmp_path: Path) -> None:
    spec = Spec(method="er", lr=0.1)
    write_plan(tmp_path, [spec, ONE])
    (tmp_path / spec.name_before).mkdir()
    remove_run(write_result(tmp_path, spec, made(spec).to_dict()).parent)
    assert read_plan(tmp_path) == [ONE]
