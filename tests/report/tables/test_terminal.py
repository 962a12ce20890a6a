"""The terminal's tables: within the terminal's width, gains and p below the scores."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dualcba.experiments import Result
from dualcba.experiments.paper.catalogue import Experiment, experiments
from dualcba.report.data import experiment_data
from dualcba.report.own_tables import parse_table
from dualcba.report.tables.terminal import show


def results(one: Experiment, seeds: int = 3) -> list[Result]:
    """A result for each entry of an experiment and each seed, made up."""
    made = []
    for k, entry in enumerate(one.entries):
        for seed in range(seeds):
            spec = replace(entry.spec, seed=seed)
            acc = 20.0 + k % 17 + 1.37 * seed * (k % 3 + 1) + 0.11 * ((k + seed) % 5)
            tasks = [acc + t for t in range(spec.tasks)]
            scores = {"acc": acc, "fm": 30 - acc / 7, "acc_auc": acc, "acc_auc_last": acc}
            made.append(
                Result(
                    spec, seed, {"bn": scores, "ibn": {n: v + 2 for n, v in scores.items()}},
                    {"bn": [tasks] * 10, "ibn": [tasks] * 10},
                    seconds={"train": 100.0}, cost={"parameters": 11_174_000},
                )
            )  # fmt: skip
    return made


def shown(name: str, width: int, seeds: int = 3) -> list[str]:
    one = experiments()[name]
    out = StringIO()
    show(one, results(one, seeds), Console(file=out, width=width), small=False)
    return [line.strip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", ["main", "per-task", "computation", "anytime", "transfer-intra"])
@pytest.mark.parametrize("width", [80, 120, 130, 220])
def test_nothing_is_cut_off(name: str, width: int) -> None:
    lines = shown(name, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_a_line_for_each_method_with_the_paper_beside_it() -> None:
    lines = shown("main", 120)
    first = next(line.split() for line in lines if line.startswith("ER-Dual-CBA "))
    assert first[1] == "IBN"
    assert "41.40" in first


def test_a_table_without_columns_has_its_title_once() -> None:
    one = parse_table("mine", "title = 'My table'\n[rows.ER]\nmethod = 'er'\n").experiment
    out = StringIO()
    show(one, results(one), Console(file=out, width=120), small=False)
    assert out.getvalue().splitlines()[0] == "My table"


def test_published_values_are_compared_with_the_statistics_of_their_rows() -> None:
    text = """
        beside = 'published'
        [rows.ER]
        method = 'er'
        statistics = 'ibn'
        published = [[30.0, nan]]
    """
    one, out = parse_table("mine", text).experiment, StringIO()
    show(one, results(one), Console(file=out, width=160), small=False)
    (row,) = (line.split() for line in out.getvalue().splitlines() if line.startswith(" ER "))
    assert row[1:6] == ["IBN", "21.5±3.7", "23.5±3.7", "30.00", "−6.5"]
    assert "published value, with the statistics (BN or IBN) of the row" in out.getvalue()


def test_every_adaptor_has_its_gain_and_two_p() -> None:
    lines = shown("main", 80)
    assert len([line for line in lines if line.startswith("DER-CBA over DER++")]) == 6
    found = [line for line in lines if line.startswith("DER-Dual-CBA over DER++")]
    assert len(found) == 6
    whole, p, ibn, own, q = found[0].split()[3:]
    assert ibn == "+2.0±0.0"
    gain, rest = (float(part.split("±")[0].replace("−", "-")) for part in (whole, own))
    assert gain == pytest.approx(2.0 + rest, abs=0.11)
    assert 0 < float(p) < 1
    assert 0 < float(q) < 1
    assert any("mean of 24 pairs" in line for line in lines)


def test_one_seed_has_gains_and_no_p() -> None:
    (line, *_) = (line for line in shown("main", 80, 1) if line.startswith("ER-Dual-CBA over ER"))
    assert line.split()[3:] == [line.split()[3], "–", "+2.0", line.split()[6], "–"]


def test_a_score_that_nobody_has_is_left_out() -> None:
    lines = shown("per-task", 120)
    second = next(k for k, line in enumerate(lines) if "CIFAR-100, M = 2000" in line)
    assert not any("task 6" in line for line in lines[:second])
    assert any("task 10" in line for line in lines[second:])


def test_gains_as_data() -> None:
    main = experiments()["main"]
    rows = experiment_data(main, results(main))
    with_gain = [row for row in rows if "gain" in row]
    bases = ("ER", "DER", "CLSER", "RAR")
    kinds = ("CBA", "Dual-CBA")
    assert {row["row"] for row in with_gain} == {f"{b}-{kind}" for b in bases for kind in kinds}
    assert with_gain[0]["gain"]["ibn"]["mean"] == pytest.approx(2.0)
