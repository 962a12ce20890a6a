"""`dualcba reproduce frontier`: its rows, its published values, and what is said about them."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Result, Spec, write_result
from dualcba.experiments.paper.catalogue import (
    FRONTIER,
    NAMES,
    Entry,
    experiments,
    make_experiment,
    named,
)
from dualcba.experiments.paper.selection import choose
from dualcba.experiments.purpose import AskedTable, add_tables
from dualcba.report import render, write_report
from dualcba.report.comparison import Served, relative_time
from dualcba.report.data import experiment_data
from dualcba.report.own_tables import parse_table

Run = Callable[..., Any]
BASES = (
    "ER", "ER-ACE", "DER++", "LAS", "PCR", "OBC", "GSA", "ER + MKD", "ER-ACE + MKD", "GSA + MKD",
    "best",
    "ER + CCL-DC, one network", "ER + CCL-DC", "ER-ACE + CCL-DC", "GSA + CCL-DC",
)  # fmt: skip
KINDS = ("CBA", "Dual-CBA", "Balanced-CBA")
COLUMN = "CIFAR-100, M = 2000"


def entry(row: str, column: str = COLUMN) -> Entry:
    found = experiments()["frontier"].entries
    return next(e for e in found if (e.row, e.column) == (row, column))


def result(row: str, seed: int = 0, seconds: float = 1.0, device: str = "cpu") -> Result:
    spec = replace(entry(row).spec, seed=seed)
    scores = {"acc": 40.0 + seed, "fm": 9.0}
    matrix = [[40.0 + seed] * 10] * 10
    return Result(
        spec, seed, {"bn": scores, "ibn": scores}, {"bn": matrix, "ibn": matrix},
        seconds={"train": seconds, "evaluate": 1.0, "total": 1 + seconds},
        versions={"device": device},
    )  # fmt: skip


# ---------------------------------------------------------------- rows and values


def test_the_recipe_is_a_row() -> None:
    assert entry("best").spec == Spec(method="best", dataset="cifar100", buffer=2000, eval_every=0)
    small = choose(named("frontier"), None, "small", None, ["best"])
    assert {e.spec.test_flip for e in small[0].entries} == {False}  # digits have no mirror images


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_there_with_every_adaptor(base: str, kind: str) -> None:
    plain, adapted = entry(base), entry(f"{base}, {kind}")
    assert adapted.method == f"{plain.method}-{kind.lower()}"
    assert adapted.paper == {}
    assert plain.spec.protocol == adapted.spec.protocol == "p10"
    own = {"method", "outer_draw", "outer_loss", "divide", "adaptor_lr"}
    ours, theirs = plain.fields, adapted.fields
    assert all(ours[name] == theirs[name] for name in ours if ours[name] is not None and
               name not in own)  # fmt: skip


def test_each_method_has_the_options_that_it_was_published_with() -> None:
    gsa = entry("GSA").spec
    assert (gsa.optimizer, gsa.lr, gsa.weight_decay) == ("adam", 0.0005, 0.0)
    assert (gsa.augmentation, gsa.forward) == ("partial", "split")
    assert gsa.method_options == {"mirror": False}
    both = entry("GSA + MKD").spec
    assert (both.augmentation, both.forward, both.lr) == ("full", "concat", 0.0005)
    assert both.method_options == {"own_draw": True, "base_mirror": False}
    er, pcr = entry("ER").spec, entry("PCR").spec
    assert (er.optimizer, er.lr, er.augmentation) == ("adam", 0.0005, "full")
    assert (er.batch_size, er.memory_batch, er.network) == (10, 64, "resnet18")
    assert (pcr.batch_size, pcr.memory_batch, pcr.optimizer, pcr.lr) == (10, 10, "sgd", 0.1)
    ace = entry("ER-ACE + MKD").spec
    assert (ace.optimizer, ace.lr, ace.momentum) == ("sgd", 0.001, 0.9)
    chain = entry("ER + CCL-DC").spec
    assert (chain.optimizer, chain.lr, chain.weight_decay) == ("adamw", 0.0005, 0.0001)
    tiny = entry("ER + CCL-DC, 1 operation", "Tiny-ImageNet, M = 2000").spec
    assert tiny.method_options == {"operations": 1, "magnitude": 11}


def test_published_values_and_where_the_strongest_rows_are() -> None:
    values = [e.paper["acc"] for e in experiments()["frontier"].entries if e.paper]
    assert entry("ER + MKD").paper["acc"] == 45.2
    assert entry("GSA + MKD").paper["acc"] == max(
        e.paper["acc"] or 0 for e in experiments()["frontier"].entries
        if e.paper and e.column == COLUMN
    )  # fmt: skip
    assert len([v for v in values if v is not None]) == 35
    tiny = {
        e.row.partition(", ")[0] for e in experiments()["frontier"].entries if "Tiny" in e.column
    }
    assert tiny == {"ER", "GSA", "ER + MKD", "GSA + MKD", "best", "ER + CCL-DC"}


def test_all_means_the_paper() -> None:
    assert not {e.name for e in named("all")} & set(FRONTIER)
    assert {experiments()[name].beside for name in NAMES} == {"paper"}
    assert experiments()["frontier"].beside == "published"


def test_las_beside_the_papers_values_of_cba() -> None:
    las, main = experiments()["las"], experiments()["main"]
    assert {e.spec.protocol for e in las.entries} == {"paper"}
    for one in (e for e in las.entries if e.paper):
        same = next(e for e in main.entries if (e.row, e.column) == (one.row, one.column))
        assert {k: v for k, v in one.paper.items() if v is not None} == same.paper
        assert one.spec == same.spec


@pytest.mark.parametrize(
    ("change", "words"),
    [("beside = 'elsewhere'", "beside is 'elsewhere', expected"),
     ("[adaptors]\nX = 'dual'", "adaptors.X is 'dual', expected"),
     ("adaptors = 3", "adaptors is 3, expected kinds of adaptors by title"),
     ("[rows.b]\nmethod = 'er'\npublished = [[1.0, 2.0]]", "a key of rows.b is 'published'")],
)  # fmt: skip
def test_mistakes_in_a_table_of_ones_own(change: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_table("mine", f"{change}\n[rows.a]\nmethod = 'er'\n")


def test_adaptors_of_a_table_of_ones_own() -> None:
    text = "[spec]\nmethod = 'las'\n[adaptors]\nDual = 'dual-cba'\n[rows.a]\n[rows.b]\nlr = 0.1\n"
    own = parse_table("mine", text).experiment
    assert [(e.row, e.method) for e in own.entries] == [
        ("a", "las"), ("a, Dual", "las-dual-cba"), ("b", "las"), ("b, Dual", "las-dual-cba"),
    ]  # fmt: skip
    content = tomllib.loads(text) | {"scores": ["acc"], "note": "", "title": ""}
    assert make_experiment("mine", content | {"columns": {"": {}}}).beside == "paper"


# ---------------------------------------------------------------- the selection of a part


def rows(*asked: str) -> list[str]:
    (one,) = choose([experiments()["frontier"]], "cifar100", "paper", "M = 2000", asked)
    assert {e.column for e in one.entries} == {COLUMN}
    return [e.row for e in one.entries]


def test_rows_by_title_or_by_text() -> None:
    assert rows("er") == ["ER", *(f"ER, {kind}" for kind in KINDS)]
    assert len(rows("MKD")) == 12
    assert rows("ER, Dual-CBA", "LAS, CBA") == ["ER, Dual-CBA", "LAS, CBA"]
    with pytest.raises(ValueError, match="unknown row of frontier 'MKT'"):
        rows("MKT")


# ---------------------------------------------------------------- time relative to ER


def test_time_relative_to_er_is_by_seed_and_device() -> None:
    er = Served(entry("ER"), (result("ER", 0, 2.0), result("ER", 1, 4.0)))
    mkd = Served(
        entry("ER + MKD"),
        (result("ER + MKD", 0, 4.0), result("ER + MKD", 1, 12.0), result("ER + MKD", 2, 1.0)),
    )
    found = relative_time(mkd, [mkd, er])
    assert found is not None
    assert (found.mean, found.seeds) == (2.5, 2)
    other = Served(entry("ER + MKD"), (result("ER + MKD", 0, 4.0, device="a GPU"),))
    assert relative_time(other, [er]) is None
    assert relative_time(mkd, [mkd]) is None
    elsewhere = replace(er, entry=replace(er.entry, column="of another buffer"))
    assert relative_time(mkd, [elsewhere]) is None


# ---------------------------------------------------------------- what is said about the values


@pytest.fixture
def results() -> list[Result]:
    return [
        result(row, seed) for row in ("ER", "ER + MKD", "ER + MKD, Dual-CBA") for seed in (0, 1)
    ]


def test_files_name_the_values_published(results: list[Result], tmp_path: Path) -> None:
    frontier = experiments()["frontier"]
    render(frontier, results, tmp_path)
    text = (tmp_path / "frontier.md").read_text()
    assert "ACC ↑, published" in text
    assert "time, ER = 1" in text
    assert "paper |" not in text
    lines = list(csv.DictReader((tmp_path / "frontier.csv").open()))
    assert "paper" not in lines[0]
    found = next(x for x in lines if (x["row"], x["score"]) == ("ER + MKD", "acc"))
    assert (found["published"], found["published_norm"]) == ("45.2", "bn")
    data = experiment_data(frontier, results)
    assert data[0]["published"]
    assert "paper" not in data[0]


def test_a_report_does_not_take_them_for_the_papers(results: list[Result], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    for one in results:
        assert isinstance(one.spec, Spec)
        write_result(out, one.spec, one.to_dict())
    add_tables(out, [AskedTable("frontier")])
    page = write_report(out, to=tmp_path / "page.html").read_text()
    assert "Comparison with published values" in page
    assert "Comparison with the paper" not in page
    assert "diamonds: published values" in page
    assert "the paper’s values" not in page


# ---------------------------------------------------------------- at small scale


def test_at_small_scale_it_runs_on_digits(dualcba: Run) -> None:
    words = ("--scale", "small", "--column", "CIFAR-10, M = 200", "--seeds", 1, "--device", "cpu")
    some = "ER; GSA + MKD, Dual-CBA"
    got = dualcba("reproduce", "frontier", *words, "--jobs", 1, "--row", some)
    assert got.code == 0, got.err
    assert got.out.startswith("5 runs needed, 0 already there")
    assert "published values do not apply" in got.out
    out = got.folder / "runs" / "reproduce-small"
    found = [json.loads(p.read_text()) for p in out.glob("*/result.json")]
    assert {r["spec"]["augmentation"] for r in found} == {"partial"}
    assert {r["spec"]["protocol"] for r in found} == {"p10"}
    assert all(r["scores"]["bn"]["acc"] > 20 for r in found)  # chance: 10
    lines = list(csv.DictReader((out / "tables" / "frontier.csv").open()))
    times = {x["row"]: x["bn_mean"] for x in lines if x["score"] == "relative_time"}
    assert float(times["ER"]) == 1.0
    assert float(times["GSA + MKD, Dual-CBA"]) > 1
    each = list(csv.DictReader((out / "tables" / "frontier-seeds.csv").open()))
    assert {x["row"]: x["bn"] for x in each if x["score"] == "relative_time"} == times
