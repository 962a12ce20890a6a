"""`dualcba runs ls | show | diff | rm | curves`, as tables and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Result, Spec, read_plan, write_plan, write_result
from dualcba.experiments.store import LOCK
from dualcba.io import only_process

Run = Callable[..., Any]
ONE, TWO = Spec(method="er"), Spec(method="er-cba", buffer=50)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "cwd" / "runs" / "x"
    write_plan(folder, [ONE, TWO])
    for spec, acc in ((ONE, 70.0), (TWO, 74.5)):
        scores = {"bn": {"acc": acc}, "ibn": {"acc": acc}}
        result = Result(spec, 0, scores, {"bn": [[acc]]}, seconds={"total": 2.0})
        write_result(folder, spec, result.to_dict())
    return folder


def test_ls(dualcba: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    got = dualcba("runs", "ls")  # ./runs by default
    assert (got.code, got.err) == (0, "")
    for word in (ONE.name, TWO.name, "er-cba", "74.5", "complete", "2 runs, 2 complete"):
        assert word in got.out
    listed = json.loads(dualcba("runs", "ls", "--json", out).out)
    assert [(one["method"], one["buffer"], one["status"]) for one in listed] == [
        ("er", 100, "complete"), ("er-cba", 50, "complete"),
    ]  # fmt: skip
    assert listed[1]["scores"]["ibn"]["acc"] == 74.5


@pytest.mark.parametrize("width", [60, 80])
def test_tables_name_their_rows_where_it_is_narrow(
    width: int, dualcba: Run, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = dualcba("runs", "ls").out.splitlines()
    first = next(k for k, line in enumerate(lines) if "74.5" in line)
    assert TWO.name in "".join(line.split()[0] for line in lines[first : first + 3] if line.strip())
    record = ["predictions", "prequential", "task-aware", "random-features"]
    spec = Spec(method="er", record=record)
    write_result(out, spec, Result(spec, 0, {"bn": {"acc": 70.0}}).to_dict())
    told = dualcba("runs", "diff", out / ONE.name, out / spec.name).out
    assert " record " in told
    assert "'random-features'" in "".join(told.split())
    assert "…" not in told


def test_ls_names_what_is_damaged(dualcba: Run, out: Path) -> None:
    (out / ONE.name / "result.json").write_text("[]")
    got = dualcba("runs", "ls")
    assert got.code == 0
    assert "damaged" in got.out
    assert "holds a list, expected the result of a run" in got.err


def test_ls_tells_runs_in_progress_from_those_that_nobody_runs(dualcba: Run, out: Path) -> None:
    pytest.importorskip("fcntl")
    for spec in (ONE, TWO):
        (out / spec.name / "result.json").unlink()
    with only_process(out / ONE.name / LOCK):
        listed = json.loads(dualcba("runs", "ls", "--json").out)
        assert [one["status"] for one in listed] == ["in progress", "not run"]
        assert dualcba("runs", "ls").out.endswith("2 runs, 0 complete, 1 in progress\n")


def test_ls_of_an_empty_folder(dualcba: Run, tmp_path: Path) -> None:
    assert dualcba("runs", "ls", tmp_path / "cwd").out == "0 runs, 0 complete\n"
    got = dualcba("runs", "ls")
    assert (got.code, got.err) == (2, "dualcba: runs is missing, expected a folder of runs\n")


def test_show(dualcba: Run, out: Path) -> None:
    got = dualcba("runs", "show", out / TWO.name)
    assert got.code == 0
    assert got.out.startswith("dualcba run --method er-cba --dataset digits --buffer 50")
    for word in ("ACC ↑", "74.5", "total 2.0 s", "result.json"):
        assert word in got.out
    shown = json.loads(dualcba("runs", "show", "--json", out / TWO.name).out)
    assert shown == {"run": str(out / TWO.name)} | json.loads(
        (out / TWO.name / "result.json").read_text()
    )


def test_diff(dualcba: Run, out: Path) -> None:
    got = dualcba("runs", "diff", out / ONE.name, out / TWO.name)
    assert got.code == 0
    for word in ("buffer", "100", "50", "+4.50"):
        assert word in got.out
    found = json.loads(dualcba("runs", "diff", "--json", out / ONE.name, out / TWO.name).out)
    assert found["spec"]["buffer"] == [100, 50]
    assert found["scores"]["bn"]["acc"] == [70.0, 74.5]
    assert found["equal"] is False
    same = dualcba("runs", "diff", out / ONE.name, out / ONE.name)
    assert "all scores, accuracies and curves are equal" in same.out


@pytest.fixture
def methods(tmp_path: Path) -> Path:
    """Three methods with two seeds each."""
    folder = tmp_path / "cwd" / "runs" / "methods"
    for method, acc in (("er", 70.0), ("er-cba", 72.0), ("er-dual-cba", 76.0)):
        for seed in (0, 1):
            spec, more = Spec(method=method, seed=seed), acc + seed * (method != "er")
            scores = {s: {"acc": more, "fm": 90 - more} for s in ("bn", "ibn")}
            write_result(folder, spec, Result(spec, seed, scores).to_dict())
    return folder


def test_compare(dualcba: Run, methods: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    got = dualcba("runs", "compare", methods)
    assert (got.code, got.err) == (0, "")
    for words in ("ER-CBA minus ER ", "ER-Dual-CBA minus ER-CBA", "+2.5 ±", "Difference in ACC ↑"):
        assert words in got.out
    assert "FM" not in got.out
    got = dualcba(
        "runs", "compare", "--method", "er,er-dual-cba", "--score", "acc,fm", "--json"
    )  # ./runs by default
    acc, fm = json.loads(got.out)
    assert (acc["first"], acc["second"], acc["score"]) == ("ER-Dual-CBA", "ER", "acc")
    assert acc["ibn"] | {"half": None, "p": None} == {
        "seeds": 2, "mean": 6.5, "half": None, "p": None
    }  # fmt: skip
    assert acc["ibn"]["p"] == pytest.approx(0.0489, abs=1e-4)
    assert fm["ibn"]["mean"] == -6.5


def test_compare_without_a_pair_is_one_line(dualcba: Run, methods: Path, out: Path) -> None:
    got = dualcba("runs", "compare", methods, "--method", "er,er-cb")
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith("dualcba: unknown method 'er-cb', did you mean 'er-cba'? (known: er,")
    got = dualcba("runs", "compare", out)
    assert (got.code, got.out) == (2, "")
    assert got.err == (
        f"dualcba: {out} has no two methods that share dataset, setting, buffer, protocol and a "
        "seed, expected two with values of acc\n"
    )


def test_a_method_without_a_pair_is_named(dualcba: Run, methods: Path) -> None:
    spec = Spec(method="gsa", protocol="p10")
    write_result(methods, spec, Result(spec, 0, {"bn": {"acc": 80.0}}).to_dict())
    got = dualcba("runs", "compare", methods, "--method", "er,er-cba,gsa")
    assert (got.code, got.err.count("\n")) == (0, 1)
    assert got.err.startswith("dualcba: gsa is in no pair: no other of these methods shares ")
    assert dualcba("runs", "compare", methods).err == ""
    got = dualcba("runs", "compare", methods, "--score", "acc,bwt")
    assert got.err == "dualcba: no two of the compared methods have values of bwt\n"
    text = Path(dualcba("report", methods, "--compare", "gsa,er").out.strip()).read_text()
    assert "er is in no pair: " in text
    assert "gsa is in no pair: " in text


def test_a_report_of_some_pairs(dualcba: Run, methods: Path) -> None:
    got = dualcba("report", methods, "--compare", "er,er-cba")
    assert got.code == 0
    text = Path(got.out.strip()).read_text()
    assert "ER-CBA minus ER" in text
    assert "ER-Dual-CBA minus" not in text
    got = dualcba("report", methods, "--compare", "er,derpp")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "unknown method 'derpp'" in got.err


def test_runs_of_several_folders_that_contradict_each_other_are_named(
    dualcba: Run, methods: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(methods, tmp_path / "again")
    commands = ("report",), ("runs", "compare")
    for words in commands:
        assert dualcba(*words, methods, other).err == ""
    spec = Spec(method="er")
    write_result(other, spec, Result(spec, 0, {"bn": {"acc": 1.0}}).to_dict())
    for words in commands:
        got = dualcba(*words, methods, other)
        assert got.code == 0
        assert got.err == (
            f"dualcba: {other / spec.name} has other scores than the same run in "
            f"{methods / spec.name}, which is used\n"
        )


def test_rm_asks_and_removes(dualcba: Run, out: Path) -> None:
    got = dualcba("runs", "rm", out / ONE.name)
    assert (got.code, got.err) == (2, "dualcba: 1 run to remove, expected --yes\n")
    assert (out / ONE.name).exists()
    got = dualcba("runs", "rm", out / ONE.name, out, "--yes")  # one of them is no run
    assert got.code == 2
    assert (out / ONE.name).exists()
    got = dualcba("runs", "rm", out / ONE.name, "--yes", "--json")
    assert json.loads(got.out) == [str(out / ONE.name)]
    assert not (out / ONE.name).exists()
    assert read_plan(out) == [TWO]


def test_curves_of_older_results(dualcba: Run, out: Path) -> None:
    assert dualcba("runs", "curves", "runs").out == "2 files written, 0 already there\n"
    assert (out / ONE.name / "curves.parquet").read_bytes()[:4] == b"PAR1"
    assert dualcba("runs", "curves", "runs").out == "0 files written, 2 already there\n"
