"""The script that compares variants: it resumes, survives a failing run, and keeps splits apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Spec
from tools import variants

TABLE = """
[defaults]
eval_every = 0
batch_size = 32
outer_every = 3

[streams.small]
dataset = "digits"
buffer = 40

[variants.plain]

[variants.dual]
adaptor = "dual-cba"

[variants.again]
adaptor = "dual-cba"

[variants.wild]
lr = 1e30
"""


@pytest.fixture
def call(tmp_path: Path) -> Any:
    """Call the script on a small table; returns its exit code and the content of its file."""
    (tmp_path / "table.toml").write_text(TABLE)

    def run(*args: str) -> tuple[int, dict[str, Any]]:
        fixed = ["--file", str(tmp_path / "table.toml"), "--device", "cpu", "--base", "er"]
        code = variants.main([str(tmp_path / "out.json"), *fixed, "--seeds", "1", *args])
        return code, json.loads((tmp_path / "out.json").read_text())

    return run


def test_a_run_is_in_the_file_with_its_scores(call: Any, capsys: Any) -> None:
    code, content = call("--only", "plain,dual,again", "--commit", "abc")
    assert code == 0
    runs = {run["variant"]: run for run in content["runs"]}
    assert list(runs) == ["plain", "dual", "again"]
    assert runs["dual"]["scores"] == runs["again"]["scores"]  # one spec, run once
    assert runs["dual"]["seconds"] == runs["again"]["seconds"]
    for run in runs.values():
        assert (run["stream"], run["base"], run["seed"], run["commit"]) == ("small", "er", 0, "abc")
        assert {"acc", "fm", "newest", "newest_recall"} <= set(run["scores"]["ibn"])
    assert "outer_every" not in runs["plain"]["options"]  # which has no adaptor
    dual = Spec(**runs["dual"]["options"])
    assert (dual.method, dual.outer_every, dual.validation) == ("er-dual-cba", 3, 0.1)
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert table[0].split() == ["acc,", "IBN", "small", "er"]
    shown = f"{runs['plain']['scores']['ibn']['acc']:.1f}"
    assert table[1].split() == ["plain", shown]
    assert len(set(map(len, table))) == 1


def test_what_the_file_holds_is_not_run_again(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("--only", "plain")
    asked: list[Spec] = []

    def updates(specs: list[Spec], *_: Any) -> Any:
        asked.extend(specs)
        return (None for _ in ())

    monkeypatch.setattr(variants, "updates", updates)
    call("--only", "plain,dual")
    assert [spec.method for spec in asked] == ["er-dual-cba"]
    asked.clear()
    call("--only", "plain", "--set", "lr=0.1")  # another spec of the same name
    call("--only", "plain", "--test")
    assert [(spec.lr, spec.validation) for spec in asked] == [(0.1, 0.1), (0.03, 0.0)]


def test_a_run_that_fails_is_told_and_the_others_go_on(call: Any, capsys: Any) -> None:
    code, content = call("--only", "wild,plain")
    assert code == 1
    assert [run["variant"] for run in content["runs"]] == ["plain"]
    (failed,) = content["failed"]
    assert failed["variant"] == "wild"
    assert failed["error"].startswith("FloatingPointError")
    got = capsys.readouterr()
    assert "failed: wild, small, er, seed 0: FloatingPointError" in got.err
    assert ["wild", "–"] in [line.split() for line in got.out.splitlines()]
    assert call("--only", "plain")[1]["failed"] == []


def test_validation_and_test_scores_are_not_mixed(call: Any, capsys: Any) -> None:
    call("--only", "plain")
    capsys.readouterr()
    call("--only", "plain", "--table", "--test")
    assert capsys.readouterr().out.splitlines()[1].split() == ["plain", "–"]


def test_differences_are_seed_by_seed() -> None:
    found = {
        ("plain", "a", "er"): {0: 10.0, 1: 20.0},
        ("dual", "a", "er"): {0: 12.0, 1: 23.0, 2: 90.0},
        ("dual", "b", "er"): {0: 12.0},
    }
    got = variants.minus(found, "plain")
    assert got["dual", "a", "er"] == {0: 2.0, 1: 3.0}
    assert got["plain", "a", "er"] == {0: 0.0, 1: 0.0}
    assert got["dual", "b", "er"] == {}
    planned = [variants.Planned(v, "a", "er", 0, {}) for v in ("plain", "dual")]
    lines = variants.show(planned, got, "acc", sign=True).splitlines()
    assert [line.split() for line in lines] == [
        ["acc", "a", "er"], ["plain", "+0.0±0.0"], ["dual", "+2.5±6.4"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [(("--only", "plane"), "unknown variant 'plane', did you mean 'plain'"),
     (("--streams", "x"), "unknown stream 'x'"),
     (("--set", "bufer=3"), "plain, small, er, seed 0: "),
     (("--set", "buffer=0"), "buffer is 0, expected")],
)  # fmt: skip
def test_a_mistake_is_one_line_before_anything_runs(
    args: tuple[str, ...], words: str, call: Any, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=words):
        call(*args)
    assert not (tmp_path / "out.json").exists()


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert variants.current_commit() == "unknown"


def test_the_shipped_table_can_be_run() -> None:
    args = variants.parse(["x.json", "--base", "er,derpp,clser,rar", "--seeds", "2"])
    planned = list(variants.plan(variants.read_toml(args.file), args))
    names = {one.spec.name for one in planned}
    assert {one.stream for one in planned} >= {"digits", "fashion-mnist", "cifar10", "cifar100"}
    assert all(one.spec.validation == 0.1 for one in planned)
    assert len(planned) > len(names) > 100  # some variants are one spec on some streams
