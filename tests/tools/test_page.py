"""What is collected in `results/`, and the tables that are made of it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Result, Spec
from dualcba.experiments.result import Anytime
from tools import collect, page
from tools.collected import Collected, Group, named, read, read_variants, unfold
from tools.page_parts import differences, paired, spread

COLUMN = "CIFAR-100, M = 2000"
MAIN = f'table main "{COLUMN}"'


def run(method: str, seed: int, acc: tuple[float, float], **fields: Any) -> Result:
    """A result whose tasks all have the same accuracy: under BN and under IBN."""
    given = {"method": method, "dataset": "cifar100", "eval_every": 0} | fields
    both = dict(zip(("bn", "ibn"), acc, strict=True))
    return Result(
        Spec(**given, seed=seed),
        seed,
        {s: {"acc": a, "fm": 50 - a, "acc_auc": None} for s, a in both.items()},
        {s: [[a] * 10] * 10 for s, a in both.items()},
        Anytime((1, 2, 3), (0, 0, 0)),
        {"other": [1, 2, 3]},
        {"train": 1.0, "evaluate": 1.0, "total": 2.0},
        versions={"dualcba": "0"},
    )


def group(
    file: str, method: str, *accs: tuple[float, float], first_seed: int = 0, **fields: Any
) -> Group:
    runs = [run(method, seed, acc, **fields) for seed, acc in enumerate(accs, first_seed)]
    return unfold(file, collect.row(runs))


def between(marker: str, groups: list[Group], before: str = "") -> str:
    text = page.rewrite(f"{before}<!-- {marker} -->old<!-- end -->", groups)
    return text.removeprefix(f"{before}<!-- {marker} -->").removesuffix("<!-- end -->").strip()


ER = group("a.json", "er", (21.0, 23.0), (22.0, 24.0), (23.0, 26.0))
CBA = group("a.json", "er-cba", (25.0, 27.0), (26.0, 28.0), (27.0, 29.0))
DUAL = group("b.json", "er-dual-cba", (25.0, 30.0), (26.0, 31.0), (27.0, 33.0))


FRONTIER = {"protocol": "p10"}
ER_P10 = group("p.json", "er", (31.0, 33.0), (32.0, 34.0), (34.0, 35.0), **FRONTIER)
DUAL_P10 = group("p.json", "er-dual-cba", (31.0, 34.0), (33.0, 36.0), **FRONTIER)
LAS_CBA_P10 = group("q.json", "las-cba", (30.0, 31.0), **FRONTIER)
LAS_P10 = group("q.json", "las", (30.0, 30.0), **FRONTIER)


def test_methods_with_each_adaptor() -> None:
    text = between(f'adaptors frontier "{COLUMN}"', [ER_P10, DUAL_P10, LAS_P10, LAS_CBA_P10, ER])
    assert text.splitlines() == [
        "| | published | alone, BN | alone, IBN | CBA, IBN | Dual-CBA, IBN | Balanced-CBA, IBN |",
        "|---|---|---|---|---|---|---|",
        "| ER | 31.6 | 32.3 ± 3.8 | 34.0 ± 2.5 | – | 35.0 ± 12.7 | – |",
        "| LAS | – | 30.0 (1 seed) | 30.0 (1 seed) | 31.0 (1 seed) | – | – |",
        "",
        "From `results/p.json`, `results/q.json`. 3 seeds, 2 of: ER, Dual-CBA.",
    ]


def test_an_option_without_a_default_keeps_its_value() -> None:
    given = {"method": "pcr", "optimizer": "sgd", "lr": 0.1, "memory_batch": 10, **FRONTIER}
    (pcr,) = [e.spec for e in named("frontier").entries if (e.row, e.column) == ("PCR", COLUMN)]
    found = group(
        "p.json", "pcr", (31.0, 32.0), **{k: v for k, v in given.items() if k != "method"}
    )
    assert found.fields["memory_batch"] == 10
    assert found.fields == {k: v for k, v in pcr.to_dict().items() if k != "seed"}
    assert "| PCR | – | 31.0 (1 seed)" in between(f'adaptors frontier "{COLUMN}"', [found, ER_P10])


def test_what_each_adaptor_adds_on_the_same_seeds() -> None:
    text = between(f'added frontier "{COLUMN}"', [ER_P10, DUAL_P10, LAS_P10, LAS_CBA_P10, CBA])
    assert text.splitlines() == [
        "| | adaptor | seeds | ACC, IBN | ACC, BN | FM, IBN |",
        "|---|---|---|---|---|---|",
        "| ER | Dual-CBA | 2 "
        "| +1.5 ± 6.4 (p 0.205) | +0.5 ± 6.4 (p 0.500) | −1.5 ± 6.4 (p 0.205) |",
        "| LAS | CBA | 1 | +1.0 | +0.0 | −1.0 |",
    ]
    assert between(f'added frontier "{COLUMN}"', [ER_P10]) == "No runs yet."


def test_variants_on_test_data_are_rows_too(tmp_path: Path) -> None:
    shared = {"variant": "a", "stream": "b", "tasks": {"bn": [[1.0]], "ibn": [[1.0]]}}
    options = {"method": "er", "dataset": "cifar100", "protocol": "p10", "eval_every": 0}
    runs = [
        {**shared, "seed": s, "scores": run("er", s, (31.0 + s, 33.0)).scores, "options": given}
        for s, given in ((0, options), (1, options), (0, options | {"validation": 0.1}))
    ]
    path = tmp_path / "variants.json"
    path.write_text(json.dumps({"runs": runs}))
    (found,) = read_variants(path)
    assert found.files == (f"{tmp_path.name}/variants.json",)
    assert [(r.seed, r.value("bn", "acc")) for r in found.results] == [(0, 31.0), (1, 32.0)]
    assert "| ER | 31.6 | 31.5 ± 6.4 |" in between(f'adaptors frontier "{COLUMN}"', [found])


def test_a_table_has_both_statistics_the_paper_and_its_files() -> None:
    lines = between(MAIN, [ER, DUAL]).splitlines()
    assert lines[0] == "| | ACC, BN | ACC, IBN | paper | FM, BN | FM, IBN | paper |"
    assert lines[2] == (
        "| ER | 22.0 ± 2.5 | 24.3 ± 3.8 | 21.66 | 28.0 ± 2.5 | 25.7 ± 3.8 | 33.21 |"
    )
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| ER", "| ER-Dual-CBA"]
    assert lines[-1] == "From `results/a.json`, `results/b.json`."
    assert between(MAIN, []) == "No runs yet."


def test_one_seed_has_a_mean_alone() -> None:
    one = group("a.json", "er", (21.0, 23.0))
    text = between(MAIN, [one])
    assert "| ER | 21.0 | 23.0 | 21.66 |" in text
    assert text.endswith("From `results/a.json`. 1 seed.")
    assert "| ER | 21.0 (1 seed) | 23.0 (1 seed) | 21.66 |" in between(MAIN, [one, DUAL])
    text = between(MAIN, [group("a.json", "er", (21.0, 23.0), (22.0, 24.0))])
    assert text.endswith("From `results/a.json`. 2 seeds.")
    assert spread(None) == "–"


def test_columns_are_those_that_have_runs() -> None:
    text = between("table small-buffers", [group("a.json", "er", (9.0, 9.0), buffer=100)])
    assert text.startswith("**CIFAR-100, M = 100**\n\n| |")
    assert "M = 200" not in text


def test_another_reading_of_a_setting() -> None:
    mixed = group("a.json", "er", (8.0, 9.0), setting="semi-0.2")
    given = {"labelled_batches": "cycled", "store_again": True, "forward": "concat"}
    cycled = group("b.json", "er", (15.0, 16.0), setting="semi-0.2", **given)
    table = f'table semi "{COLUMN}"'
    reading = "labelled_batches=mixed store_again=false"
    assert "| ER, ratio 0.2 | 15.0" in between(table, [mixed, cycled])
    assert "| ER, ratio 0.2, stored once | 8.0" in between(f"{table} {reading}", [mixed, cycled])
    also = f"<!-- {table} {reading} --><!-- end -->\n"
    text = page.rewrite(f"{also}<!-- agreement --><!-- end -->", [mixed, cycled])
    where = f"{COLUMN}, labelled_batches = mixed, store_again = False"
    assert f"| semi | {where} | 0 of 1 | 12 |" in text


def test_of_two_readings_of_a_value_one_is_counted() -> None:
    given = {"setting": "semi-0.2", "labelled_batches": "cycled"}
    stored = {"store_again": True, "forward": "concat"}
    again = group("a.json", "er", (16.0, 16.0), **given, **stored)
    once = group("b.json", "er", (40.0, 40.0), **given)
    assert "**1 of 1, 100 %**" in between("agreement", [again, once])


def test_many_scores_stand_below_each_other() -> None:
    text = between(f'table per-task "{COLUMN}"', [group("a.json", "er", (21.0, 9.0), eval_every=5)])
    assert text.startswith("| | ER, BN | paper |\n|---|---|---|\n| task 1 | 21.0 | 19.10 |")
    assert "| AUC | – | 21.41 |" in text


def test_cells_agree_within_the_tolerance_or_the_interval() -> None:
    near = group("a.json", "er", (24.1, 0.0), (24.2, 0.0))  # 2.49 above 21.66
    wide = group("a.json", "er-cba", (20.0, 0.0), (40.0, 0.0), (30.0, 0.0))  # 4.44 above, ± 25
    far = group("a.json", "er-dual-cba", (29.0, 32.0), (29.0, 32.1))  # IBN: 2.91 above 29.14
    text = between("agreement", [near, wide, far])
    assert f"| main | {COLUMN} | 2 of 3 | 17 |" in text
    assert f"| normalisation | {COLUMN} | 1 of 4 | 16 |" in text  # BN: 29.0 against 25.29
    assert f"| main | {COLUMN} | ER-Dual-CBA | 32.0 ± 0.6 | 29.14 | +2.9 |" in text
    assert f"| normalisation | {COLUMN} | ER, IBN | 0.0 ± 0.0 | 24.67 | −24.7 |" in text
    assert "| **all** | | **3 of 9, 33 %** | **327** | **1 of 9, 11 %** | **318** |" in text
    # FM, 50 − ACC here: ER-CBA agrees by its interval alone
    acc = "Of the 327 values of ACC in the paper, 3 agree (1 %), 6 do not, and 318 have not been"
    assert acc in text  # also no transfer, bi-level
    assert "Counted once: 2 of 5, 40 % in ACC and" in text
    by_value = "Of all, 2 values of ACC and 0 of FM lie within 2.5 points;"
    assert by_value in text  # ER, in two tables
    assert "- main: CIFAR-10, M = 200 (17);" in text
    assert f"| main | {COLUMN} | 2 of 3 | 17 |" in text
    assert between("agreed acc", [near, wide, far]) == "3 of 9, 33 %"
    assert between("counted acc", [near, wide, far]).startswith(acc)


def test_a_cell_that_does_not_agree_has_what_was_tried() -> None:
    usual = {"forward": "concat", "loss_mean": "samples"}
    options = {"weight": 4.0, "released": True}
    far = group("a.json", "ss-il", (40.0, 40.0), (41.0, 41.0), method_options=options, **usual)
    heavy = options | {"weight": 5.0}
    other = group("b.json", "ss-il", (11.0, 11.0), (11.0, 11.0), method_options=heavy, **usual)
    head = f"| main | {COLUMN} | SS-IL | 40.5 ± 6.4 | 24.90 | +15.6 | "
    text = between("agreement", [far, other])
    planned = "“SS-IL, default”, “SS-IL, distillation times T²”"
    assert f"{head}weight = 5.0: 11.0 ± 0.0; not run yet: {planned} |" in text
    default = group("c.json", "ss-il", (9.0, 9.0))
    fields = "forward = split, loss_mean = batches, released = default, weight = default"
    assert f"{head}{fields}: 9.0 (1 seed);" in between("agreement", [far, default])


def test_what_was_tried_keeps_what_the_row_is_about() -> None:
    """Frozen parts, other layers and other protocols are not other readings of a cell."""
    far = group("a.json", "er-dual-cba", (2.0, 2.0), (2.0, 2.0))
    others = [
        group("b.json", "er-dual-cba", (3.0, 3.0), **fields)
        for fields in ({"freeze_after": 4}, {"norm": "cn"}, {"levels": "joint"}, {"divide": True})
    ]
    (line,) = [
        line
        for line in between("agreement", [far, *others]).splitlines()
        if line.startswith(f"| main | {COLUMN} | ER-Dual-CBA | 2.0 ± 0.0 | 29.14")
    ]
    assert re.search(r"\| divide = yes: 3.0 \(1 seed\); not run yet: \d+ other readings \|", line)


def test_a_row_against_the_default() -> None:
    default = group("a.json", "er-dual-cba", (1.0, 30.0), (1.0, 31.0), (1.0, 32.0))
    other = group("b.json", "er-dual-cba", (1.0, 29.0), (1.0, 29.5), outer_every=1)
    marker = f'against readings-text "{COLUMN}" "outer step every step"'
    assert between(marker, [default, other]) == "ACC −1.2 ± 3.2, FM +1.2 ± 3.2 (2 seeds)"
    assert between(marker, [default]) == "not measured yet"
    with pytest.raises(ValueError, match="unknown row of readings-text 'outer step'"):
        between(f'against readings-text "{COLUMN}" "outer step"', [default])


def test_gains_are_paired_by_seed() -> None:
    found = paired(Collected([ER, CBA, DUAL]).serve("main", COLUMN))
    assert list(found) == ["ER"]
    parts = {name: (gap.seeds, round(gap.mean or 0.0, 3)) for name, gap in found["ER"].items()}
    assert parts == {
        "whole": (3, 9.333), "ibn": (3, 2.333), "adaptors": (3, 7.0), "cba": (3, 3.333),
        "fm": (3, -9.333), "fm_adaptors": (3, -7.0),
    }  # fmt: skip
    whole = found["ER"]["whole"]
    assert whole.half == pytest.approx(1.434, abs=1e-3)
    assert whole.p == pytest.approx(0.001, abs=5e-4)
    assert "| ER | +9.3 ± 1.4 (p 0.001) |" in between(f'gains main "{COLUMN}"', [ER, CBA, DUAL])
    line = between(f'gained main "{COLUMN}" cba', [ER, CBA, DUAL])
    assert line == "ER: +3.3 ± 1.4"
    without = between(f'gains main "{COLUMN}"', [ER, DUAL])
    assert "| – |" in without


def test_most_seeds_then_the_file_that_is_preferred() -> None:
    few = group("z.json", "er", (1.0, 1.0))
    assert "| ER | 22.0" in between(MAIN, [few, ER])
    other = group("z.json", "er", (1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    with pytest.raises(ValueError, match=r"a.json and z.json disagree on er, expected"):
        between(MAIN, [ER, other])
    assert "| ER | 1.0" in between(MAIN, [ER, other], before="<!-- prefer z.json -->")
    same = Group(("z.json",), ER.results)
    assert "From `results/a.json`." in between(MAIN, [ER, same])


def test_further_seeds_of_other_files_are_added() -> None:
    later = group("z.json", "er", (1.0, 1.0), (26.0, 30.0), first_seed=2)
    text = between(MAIN, [ER, later])
    assert "| ER | 23.0" in text  # seed 2 is that of the file with most seeds
    assert "From `results/a.json`, `results/z.json`. 4 seeds." in text


def test_variants_say_what_is_not_usual() -> None:
    plain = group("a.json", "lucir", (24.0, 24.0))
    other = group("a.json", "lucir", (11.0, 11.0), method_options={"rehearse": False})
    assert differences(other.fields) == {"rehearse": False}
    text = between("variants a.json acc", [other, plain])
    assert text.splitlines()[2:4] == [
        "| LUCIR | 24.0 | 24.0 | 8.28 |",
        "| LUCIR, rehearse = False | 11.0 | 11.0 | 8.28 |",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- tabel main --><!-- end -->", "unknown marker 'tabel', did you mean 'table'"),
        ("<!-- table mian --><!-- end -->", "unknown experiment 'mian'"),
        ('<!-- table main "M = 3" --><!-- end -->', "unknown column of main 'M = 3'"),
        ("<!-- table main sed=1 --><!-- end -->", "unknown field 'sed'"),
        ("<!-- table --><!-- end -->", "has 0 words"),
        (f'<!-- gained main "{COLUMN}" all --><!-- end -->', "unknown gain 'all'"),
        ("<!-- variants c.json --><!-- end -->", "unknown file 'c.json'"),
        ("<!-- prefer c.json -->", "unknown file 'c.json'"),
        ("<!-- agreement -->", "'agreement' has no end"),
        ("<!-- agreement --><!-- agreement --><!-- end -->", "'agreement' has no end"),
    ],
)
def test_a_wrong_marker_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        page.rewrite(text, [ER])
    assert "\n" not in str(error.value)


def test_collected_files_hold_no_curves_and_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        fields = {"agnostic_from": f"/some/where/{seed}.safetensors", "specific": "individual"}
        dual = run("er-dual-cba", seed, (25.0, 30.0), **fields)
        origin = {"dataset": "cifar10", "buffer": 200, "seed": seed}
        dual = replace(dual, agnostic_provenance=origin)
        for result in (run("er", seed, (21.0, 23.0)), dual):
            folder = tmp_path / "runs" / f"{result.method}-{seed}"
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps(result.to_dict()))
    out = tmp_path / "results" / "made-up.json"
    words = [str(tmp_path / "runs"), str(out), "--command", "dualcba run", "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", ["collect", *words])
    collect.main()
    text = out.read_text()
    assert not any(word in text for word in ("recordings", 'anytime": {', "where", "NaN"))
    rows = {row["method"]: row for row in json.loads(text)["rows"]}
    assert rows["er-dual-cba"]["seeds"] == [0, 1]
    assert rows["er-dual-cba"]["spec"]["agnostic_from"] is None
    assert rows["er-dual-cba"]["agnostic_provenance"] == {"dataset": "cifar10", "buffer": 200}
    assert rows["er"]["agnostic_provenance"] is None
    assert rows["er"]["tasks"]["bn"] == [[21.0] * 10] * 2
    assert rows["er"]["scores"]["bn"]["acc_auc"] is None
    (out.parent / "bench.json").write_text('{"rows": {"a": 1}}')
    groups = read(out.parent)
    assert [g.fields["method"] for g in groups] == ["er", "er-dual-cba"]
    assert "| from CIFAR-10 | 25.0 ± 0.0 |" in between(f'table transfer-inter "{COLUMN}"', groups)


def test_a_seed_that_was_run_twice_is_told() -> None:
    twice = [run("er", 0, (21.0, 23.0))] * 2
    with pytest.raises(ValueError, match=r"er has seeds \[0, 0\], expected each once"):
        collect.row(twice)
