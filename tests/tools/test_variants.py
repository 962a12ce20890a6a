"""The script that compares variants: it resumes, survives a failing run, and keeps splits apart."""

from __future__ import annotations

import json
import subprocess
import tomllib
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


# ---------------------------------------------------------------- a search over methods


SEARCH = """
[defaults]
eval_every = 0
protocol = "p10"
augmentation = "partial"
tasks = 2

[streams.small]
dataset = "digits"
buffer = 40

[variants.er]
base = "er"

[variants.free]
lr = 0.001

[variants.taught]
base = "gsa"
teacher = "mkd"
adaptor = "balanced-cba"
lr = 0.001
adaptor_lr = 0.003
method_options = { alpha = 0.02, base_mirror = false }

[variants.dear]
base = "er"
teacher = "ccl-dc"
"""


@pytest.fixture
def search_call(tmp_path: Path) -> Any:
    (tmp_path / "table.toml").write_text(SEARCH)

    def run(*args: str) -> tuple[int, dict[str, Any]]:
        fixed = ["--file", str(tmp_path / "table.toml"), "--device", "cpu", "--jobs", "1"]
        code = variants.main([str(tmp_path / "out.json"), *fixed, "--show", "acc", *args])
        return code, json.loads((tmp_path / "out.json").read_text())

    return run


def test_the_parts_of_a_method_are_options_of_a_variant() -> None:
    args = variants.parse(["x.json", "--base", "er,las", "--seeds", "1"])
    planned = {
        (one.variant, one.base): one.spec for one in variants.plan(tomllib.loads(SEARCH), args)
    }
    assert list(planned) == [
        ("free", "er"), ("free", "las"), ("er", ""), ("taught", ""), ("dear", ""),
    ]  # fmt: skip
    assert planned["taught", ""].method == "gsa+mkd-balanced-cba"
    assert planned["taught", ""].adaptor_lr == 0.003
    assert {spec.protocol for spec in planned.values()} == {"p10"}
    args = variants.parse(["x.json", "--base", "er", "--seeds", "1", "--protocol", "paper"])
    given = [one.spec.protocol for one in variants.plan(tomllib.loads(SEARCH), args)]
    assert set(given) == {"paper"}


def test_stages_of_a_search(search_call: Any, capsys: Any) -> None:
    stage = ("--only", "er,taught,dear", "--most-cost", "6")
    code, content = search_call(*stage, "--seeds", "1")
    assert code == 0
    assert [run["variant"] for run in content["runs"]] == ["er", "taught"]
    costs = {cost["variant"]: cost["cost"] for cost in content["costs"]}
    assert costs["er"] == 1.0
    assert 2 < costs["taught"] < 6 < costs["dear"]
    assert "left out: dear, small, costs" in capsys.readouterr().err
    scores = {run["variant"]: run["scores"]["ibn"]["acc"] for run in content["runs"]}
    first = max(scores, key=lambda name: scores[name])
    code, content = search_call("--best", "1", "--most-cost", "6", "--seeds", "2")
    assert code == 0
    assert [(r["variant"], r["seed"]) for r in content["runs"][2:]] == [(first, 1)]
    assert f"the best by acc:\n{first}  {scores[first]:6.2f}" in capsys.readouterr().err


def test_the_best_of_nothing_is_an_error(search_call: Any) -> None:
    with pytest.raises(SystemExit, match=r"--best 3: .* holds no run of these variants"):
        search_call("--best", "3")


def test_a_variant_without_each_of_its_parts() -> None:
    args = variants.parse(["x.json", "--leave-one-out", "taught", "--seeds", "1"])
    planned = {one.variant: one.spec for one in variants.plan(tomllib.loads(SEARCH), args)}
    methods = {name: spec.method for name, spec in planned.items()}
    assert methods == {
        "taught": "gsa+mkd-balanced-cba",
        "without base": "er+mkd-balanced-cba",
        "without teacher": "gsa-balanced-cba",
        "without adaptor": "gsa+mkd",
        "without optimizer": "gsa+mkd-balanced-cba",
    }
    options = {name: spec.method_options for name, spec in planned.items()}
    assert options["without base"] == {"alpha": 0.02}
    assert options["without teacher"] == {"mirror": False}
    assert (planned["taught"].lr, planned["without optimizer"].lr) == (0.001, 0.0005)


def test_the_search_for_the_best_method_can_be_run() -> None:
    words = ["x.json", "--file", "tools/frontier.toml", "--streams", "cifar100", "--seeds", "1"]
    args = variants.parse(words)
    planned = list(variants.plan(variants.read_toml(args.file), args))
    specs = {one.variant: one.spec for one in planned}
    assert 40 <= len(specs) == len({repr(spec) for spec in specs.values()})
    assert all((s.protocol, s.validation, s.buffer) == ("p10", 0.1, 2000) for s in specs.values())
    for name in specs:  # what is left without a part can be run too
        args = variants.parse([*words, "--leave-one-out", name])
        variants.check(list(variants.plan(variants.read_toml(args.file), args)))
