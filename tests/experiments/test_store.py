"""A result is there whole or not at all."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from dualcba.experiments import (
    Spec,
    check_free,
    read_plan,
    read_results,
    write_plan,
    write_result,
)

ONE, TWO = Spec(method="er", seed=0), Spec(method="er", seed=1)


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "runs"
    for spec, acc in ((ONE, 1.5), (TWO, 2.5)):
        path = write_result(out, spec, {"seed": spec.seed, "acc": acc, "none": None})
        assert path == out / spec.name / "result.json"
        assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    assert read_results(out) == [
        {"seed": 0, "acc": 1.5, "none": None},
        {"seed": 1, "acc": 2.5, "none": None},
    ]


def test_the_result_comes_after_the_files_beside_it(tmp_path: Path) -> None:
    there: list[bool] = []
    files = {"part": lambda path: there.append(path.with_name("result.json").exists())}
    assert write_result(tmp_path, ONE, {}, files).exists()
    assert there == [False]


def test_numbers_keep_every_digit(tmp_path: Path) -> None:
    value = 100 / 3
    path = write_result(tmp_path, ONE, {"acc": value})
    assert json.loads(path.read_text())["acc"] == value


def test_results_can_be_read_by_all(tmp_path: Path) -> None:
    assert write_result(tmp_path, ONE, {}).stat().st_mode & 0o777 == 0o644


def test_a_complete_run_is_in_the_way(tmp_path: Path) -> None:
    check_free(tmp_path, [ONE, TWO])
    check_free(tmp_path / "new", [ONE])
    write_result(tmp_path, TWO, {})
    check_free(tmp_path, [ONE])
    with pytest.raises(FileExistsError, match=f"{TWO.name} already holds a complete run, expected"):
        check_free(tmp_path, [ONE, TWO])


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_a_file_is_in_the_way(below: str, tmp_path: Path) -> None:
    """Found out before the run, not after it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        check_free(tmp_path / "file" / below, [ONE])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_cannot_be_written_leaves_nothing(bad: object, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_result(tmp_path, ONE, {"acc": bad})
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    check_free(tmp_path, [ONE])


def test_a_failed_write_leaves_the_old_result(tmp_path: Path) -> None:
    path = write_result(tmp_path, ONE, {"acc": 1})
    with pytest.raises(TypeError):
        write_result(tmp_path, ONE, {"acc": object()})
    assert json.loads(path.read_text()) == {"acc": 1}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_drafts_are_no_results(tmp_path: Path) -> None:
    folder = tmp_path / ONE.name
    folder.mkdir()
    (folder / ".draft-x").write_text("{")
    assert read_results(tmp_path) == []
    check_free(tmp_path, [ONE])


def test_calls_that_begin_together_all_stand_in_the_plan(tmp_path: Path) -> None:
    """Each opens the folder itself, so threads wait for each other as processes do."""
    calls = [[Spec(method="er", seed=k)] for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(write_plan, tmp_path), calls))
    assert sorted(spec.seed for spec in read_plan(tmp_path)) == list(range(16))
