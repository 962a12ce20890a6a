"""`dualcba reproduce my.toml`: the runs, the files and the report of a table of one's own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
MINE = """
title = "My table"
seeds = 2
figure = "anytime"

[spec]
batch_size = 100
tasks = 2
eval_every = 10

[columns]
"M = 20" = { buffer = 20 }
"M = 60" = { buffer = 60 }

[rows.plain]
method = "er"

[rows.corrected]
method = "er-dual-cba"
"""
HERE = ("--device", "cpu", "--jobs", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def test_runs_files_and_report(dualcba: Run, file: Path) -> None:
    got = dualcba("reproduce", file, *HERE)
    assert got.code == 0
    out = got.folder / "runs" / "mine"
    results = [json.loads(p.read_text()) for p in sorted(out.glob("*/result.json"))]
    assert sorted((r["method"], r["buffer"], r["seed"]) for r in results) == sorted(
        (m, b, s) for m in ("er", "er-dual-cba") for b in (20, 60) for s in (0, 1)
    )
    for word in ("8 runs needed, 0 already there", "My table, M = 20", "plain", "corrected",
                 "corrected over plain"):  # fmt: skip
        assert word in got.out
    names = {p.name for p in (out / "tables").iterdir()}
    assert names == {"mine.md", "mine.csv", "mine.tex", "mine-seeds.csv", "mine-gains.csv",
                     "mine-1.svg", "mine-1.png", "mine-2.svg", "mine-2.png"}  # fmt: skip
    lines = list(csv.DictReader((out / "tables" / "mine-seeds.csv").open()))
    found = {
        (line["row"], line["column"], line["seed"]): float(line["ibn"])
        for line in lines
        if line["score"] == "acc"
    }
    rows = {"er": "plain", "er-dual-cba": "corrected"}
    assert found == {
        (rows[r["method"]], f"M = {r['buffer']}", str(r["seed"])): r["scores"]["ibn"]["acc"]
        for r in results
    }
    again = dualcba("reproduce", file, *HERE)
    assert "8 runs needed, 8 already there" in again.out
    page = Path(dualcba("report", out).out.strip())
    text = (got.folder / page).read_text(encoding="utf-8")
    assert "Tables of your own" in text
    assert "My table" in text
    assert "small scale" not in text
    assert "CIFAR" not in text


def test_parts_of_it_and_other_seeds(dualcba: Run, file: Path) -> None:
    got = dualcba("reproduce", file, "--column", "M = 60", "--seeds", 1, "--out", "x", "--json",
                  *HERE)  # fmt: skip
    printed = json.loads(got.out)
    assert printed["runs"] == {"needed": 2, "there": 0, "missing": 2}
    assert {one["column"] for one in printed["experiments"]["mine"]} == {"M = 60"}


def test_more_seeds_than_asked_for_are_used_and_named(dualcba: Run, file: Path) -> None:
    part = ("reproduce", file, "--column", "M = 60", "--row", "plain", *HERE)
    first = dualcba(*part, "--seeds", 3)
    assert "beyond" not in first.out
    again = dualcba(*part, "--seeds", 1)
    assert "1 run needed, 1 already there\n" in again.out
    assert "the tables also include results of the seeds 1, 2\n" in again.out
    assert "over 3 seeds" in again.out
    (row,) = json.loads(dualcba(*part, "--seeds", 1, "--json").out)["experiments"]["mine"]
    assert row["seeds"] == [0, 1, 2]


def test_files_have_all_that_was_run_whatever_is_selected(dualcba: Run, file: Path) -> None:
    assert dualcba("reproduce", file, "--seeds", 1, *HERE).code == 0
    tables = dualcba("list", "methods").folder / "runs" / "mine" / "tables"
    before = {path.name: path.read_bytes() for path in tables.iterdir()}
    part = ("--column", "M = 60", "--row", "plain", "--seeds", 1)
    got = dualcba("reproduce", file, *part, *HERE)
    assert "1 run needed, 1 already there" in got.out
    assert "M = 20" not in got.out
    assert {path.name: path.read_bytes() for path in tables.iterdir()} == before


def test_files_name_what_was_not_run(dualcba: Run, file: Path) -> None:
    got = dualcba("reproduce", file, "--column", "M = 60", "--row", "plain", "--seeds", 1, *HERE)
    tables = got.folder / "runs" / "mine" / "tables"
    text = (tables / "mine.md").read_text(encoding="utf-8")
    assert text.endswith("\nNot run: M = 20.\n\nRows not run: corrected.\n")
    assert "corrected" not in (tables / "mine.csv").read_text()
    assert {p.name for p in tables.iterdir()} >= {"mine-2.svg", "mine-2.png"}


def test_mistakes_are_one_line(dualcba: Run, file: Path) -> None:
    for given, says in (
        (("--scale", "small"), "scale is 'small', expected 'paper': a table of your own is run"),
        (("--column", "M = 99"), "unknown column of mine 'M = 99'"),
        (("--dataset", "cifar10"), "mine has nothing on cifar10, expected another --dataset"),
    ):
        got = dualcba("reproduce", file, *given)
        assert (got.code, got.out, got.files) == (2, "", [])
        assert says in got.err
    file.write_text("[rows.a]\nlr = 'fast'\n")
    got = dualcba("reproduce", file)
    assert (got.code, len(got.lines)) == (2, 1)
    assert "mine.toml: row 'a', column 'mine': lr is 'fast', expected a number above 0" in got.err
