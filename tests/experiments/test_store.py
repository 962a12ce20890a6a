"""A result is written whole or not at all, and read in one place; so is a plan."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import (
    Result,
    Spec,
    check_free,
    find_results,
    known_data,
    read_plan,
    read_results,
    write_plan,
    write_result,
)
from dualcba.experiments.store import contradictions, distinct, result_path

ONE, TWO = Spec(method="er", seed=0), Spec(method="er", seed=1)


def made(acc: float = 1.5, status: str = "complete", **given: Any) -> Result:
    spec = Spec(**{"method": "er"} | given)
    return Result(spec, spec.seed, {"bn": {"acc": acc, "fm": None}}, status=status)


def write(out: Path, name: str, content: object) -> Path:
    path = out / name / "result.json"
    path.parent.mkdir(parents=True)
    content = content.to_dict() if isinstance(content, Result) else content
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "runs"
    results = [made(1.5), made(2.5, seed=1)]
    for spec, result in zip((ONE, TWO), results, strict=True):
        path = write_result(out, spec, result.to_dict())
        assert path == out / spec.name / "result.json"
        assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    assert read_results(out) == {out / r.spec.name: r for r in results}


def test_only_the_runs_of_the_folder_itself_are_read(tmp_path: Path) -> None:
    write(tmp_path, "a", made())
    write(tmp_path, "below/b", made(seed=1))
    assert [r.seed for r in read_results(tmp_path).values()] == [0]


def test_a_report_finds_runs_at_any_depth_and_each_once(tmp_path: Path) -> None:
    write(tmp_path, "a", made())
    write(tmp_path, "main/b", made(seed=1))
    write(tmp_path, "other/b", made(seed=1))
    write(tmp_path, "c", made(method="er-cba", status="stopped"))
    assert [r.seed for r in find_results(tmp_path)] == [0, 1]


def test_of_runs_of_a_spec_and_seed_the_first_counts_and_those_that_differ_are_named() -> None:
    first, again, other, seed = made(1.5), made(2.5), made(1.5, lr=0.1), made(1.5, seed=1)
    found = distinct([first, again, other, seed])
    assert [id(result) for result in found] == [id(first), id(other), id(seed)]
    runs = {Path("a"): first, Path("b"): again, Path("c"): other, Path("d"): seed}
    assert contradictions(runs) == ["b has other scores than the same run in a, which is used"]
    more = replace(first, scores={"bn": {"acc": 1.5, "fm": 3.0}, "ibn": {"acc": 9.0}})
    assert contradictions({Path("a"): first, Path("b"): more}) == []  # the first has no such score


def test_a_spec_that_is_planned_twice_is_in_the_plan_once(tmp_path: Path) -> None:
    write_plan(tmp_path, [ONE])
    write_plan(tmp_path, [TWO, ONE])
    assert read_plan(tmp_path) == [ONE, TWO]


def test_a_folder_that_is_missing_or_empty_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is missing, expected a folder of runs$"):
        find_results(tmp_path / "nowhere")
    (tmp_path / "mine.toml").touch()
    for read in (find_results, read_plan):
        with pytest.raises(NotADirectoryError, match=r"mine\.toml is a file, expected "):
            read(tmp_path / "mine.toml")
    with pytest.raises(ValueError, match="holds no complete run, expected") as error:
        find_results(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON: "),
        ("[]", "holds a list, expected the result of a run"),
        ({}, "lacks 'spec', expected the result of a run"),
        ({"spec": {}, "seed": 0, "scores": {}}, "lacks 'status', expected the result of a run"),
        (made().to_dict() | {"spec": {}}, "lacks 'method' in spec, expected the result of a run"),
        (made().to_dict() | {"spec": []}, "has spec of [], expected an object"),
        (
            made().to_dict() | {"seed": "0"},
            "has seed of '0', expected a whole number of at least 0",
        ),
        (made().to_dict() | {"scores": {"bn": 3}}, "has scores.bn of 3, expected an object"),
        (made().to_dict() | {"data": 3}, "has a wrong 'data', expected name, path and digest"),
        (
            made().to_dict() | {"data": {"name": "a", "path": 3, "digest": "b"}},
            "has 'path' of 'data' that is not text, expected text",
        ),
        (made().to_dict() | {"schema": 3}, "has the schema 3, expected 1 or 2"),
    ],
)
def test_a_damaged_result_is_named_in_one_line(tmp_path: Path, content: Any, says: str) -> None:
    path = write(tmp_path, "a", content)
    for read in (read_results, find_results):
        with pytest.raises(ValueError, match=re.escape(f"{path} {says}")) as error:
            read(tmp_path)
        assert "\n" not in str(error.value)


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
    assert read_results(tmp_path) == {}
    check_free(tmp_path, [ONE])


def test_calls_that_begin_together_all_stand_in_the_plan(tmp_path: Path) -> None:
    """Each opens the folder itself, so threads wait for each other as processes do."""
    calls = [[Spec(method="er", seed=k)] for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(write_plan, tmp_path), calls))
    assert sorted(spec.seed for spec in read_plan(tmp_path)) == list(range(16))


def test_a_plan_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Two fields of the spec had other names."""
    specs = [
        Spec(method="derpp", method_options={"alpha": 0.5}),
        Spec(),
        Spec(agnostic_from="pretrained"),
    ]
    old = []
    for spec in specs:
        fields = spec.to_dict()
        part = fields.pop("agnostic_from")
        fields["adaptor"] = part or ("trained" if "dual" in spec.method else None)
        fields["options"] = fields.pop("method_options")
        old.append(fields)
    (tmp_path / "plan.json").write_text(json.dumps({"specs": old}))
    assert read_plan(tmp_path) == specs
    write_plan(tmp_path, [])
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == 2
    assert read_plan(tmp_path) == specs


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    for content in ("{", "{}", '{"specs": [3]}', '{"specs": [{"buffers": 1}]}'):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(ValueError, match=r"plan.json cannot be read as a plan: "):
            read_plan(tmp_path)


def test_the_plan_keeps_the_data_of_earlier_calls(tmp_path: Path) -> None:
    data = DataOrigin("own", "/here/own.npz", "ab")
    write_plan(tmp_path, [ONE], {ONE.dataset: data})
    write_plan(tmp_path, [TWO], {TWO.dataset: data})
    assert read_plan(tmp_path) == [ONE, TWO]
    assert known_data(tmp_path, {}) == {ONE.dataset: data}
    for other in (replace(data, digest="cd"), replace(data, path="/there/own.npz")):
        with pytest.raises(ValueError, match=r"plan.json names another dataset .*, expected dig"):
            write_plan(tmp_path, [replace(ONE, seed=5)], {ONE.dataset: other})
    assert read_plan(tmp_path) == [ONE, TWO]


def test_a_folder_of_an_earlier_version_is_that_of_its_run(tmp_path: Path) -> None:
    spec, plain = Spec(method="er", lr=0.1), Spec(method="er")
    assert result_path(tmp_path, spec).parent.name == spec.name != spec.name_before
    (tmp_path / spec.name_before).mkdir()
    assert spec.name.startswith(spec.name_before)
    assert result_path(tmp_path, spec) == tmp_path / spec.name_before / "result.json"
    assert plain.name == plain.name_before
