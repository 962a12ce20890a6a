"""The closing table: mean and interval over seeds, BN beside IBN, a dash for what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dualcba.experiments import Result
from dualcba.experiments.result import make_spec
from dualcba.report import summary
from dualcba.report.comparison import measure
from dualcba.report.tables.model import short_spread


def result(
    method: str, seed: int, acc: float, auc: float | None = 50.0, buffer: int = 100, lr: float = 0.1
) -> Result:
    scores = {"acc": acc, "fm": 10.0, "acc_auc": auc}
    fields = {"method": method, "dataset": "digits", "setting": "online", "buffer": buffer}
    spec = make_spec(fields | {"lr": lr, "seed": seed})
    return Result(spec, seed, {"bn": scores, "ibn": {**scores, "acc": acc + 1}})


def cell(group: list[Result], statistics: str, score: str) -> str:
    return short_spread(measure(group, statistics, score))


def text(results: list[Result], width: int = 120, asked: Sequence[str] = ()) -> str:
    out = StringIO()
    console = Console(file=out, width=width)
    for table in summary(results, console, asked):
        console.print(table)
    return out.getvalue()


def test_one_row_per_method_in_order() -> None:
    shown = text([result(m, s, a) for m, a in (("er", 40), ("er-cba", 60)) for s in range(3)])
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith("er")]
    assert [line[0] for line in lines] == ["er", "er-cba"]
    assert lines[0][1:3] == ["40.0±0.0", "41.0±0.0"]
    for word in ("digits", "online", "100", "ACC", "FM", "BN", "IBN", "95 %", "3 seed"):
        assert word in shown


def test_where_it_is_narrow_the_name_is_broken_and_no_number_is_cut() -> None:
    shown = text([result("smooth-dual-cba", s, 40 + 9.0 * s, 50 + 4.0 * s) for s in (0, 1)], 74)
    assert "…" not in shown
    assert shown.count("44.5±57.2") == 1
    assert shown.count("52.0±25.4") == 2


def test_runs_that_differ_in_more_than_the_seed_are_never_averaged() -> None:
    runs = [result("er", 0, 40), result("er", 0, 60, buffer=500), result("er", 0, 80, lr=0.5)]
    shown = text(runs)
    assert "±" not in shown.replace("mean ±", "")
    assert shown.index("buffer 100") < shown.index("80.0") < shown.index("buffer 500")
    lines = [line.split() for line in shown.splitlines() if " lr 0.5 " in line]
    assert [line[:4] for line in lines] == [["er,", "lr", "0.5", "80.0"]]


def test_a_terminal_too_narrow_for_all_scores_has_several_tables() -> None:
    shown = text([result("er-dual-cba", s, 40 + 9.0 * s, 50 + 4.0 * s) for s in (0, 1)], 50)
    assert "…" not in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(" er-dual-cba ")]
    assert len(rows) > 1
    assert [value for row in rows for value in row[1:]] == [
        "44.5±57.2", "45.5±57.2", "10.0±0.0", "10.0±0.0", "52.0±25.4", "52.0±25.4",
    ]  # fmt: skip


def test_the_newest_task_has_a_column_and_an_older_result_a_dash_in_it() -> None:
    old, new = result("er", 0, 40.0), result("er-cba", 0, 60.0)
    added = {"newest": 12.0, "prequential": 34.0}
    new = replace(new, scores={s: {**found, **added} for s, found in new.scores.items()})
    assert "newest" not in text([old])
    shown = text([old, new])
    assert "newest task ↑" in shown
    assert "prequential ↑" in shown
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith("er")]
    assert [line[-4:] for line in lines] == [["–"] * 4, ["12.0", "12.0", "34.0", "34.0"]]


def test_mean_and_students_interval() -> None:
    group = [result("er", s, a) for s, a in enumerate([1.0, 2.0, 3.0])]
    assert cell(group, "bn", "acc") == "2.0±2.5"
    assert cell(group, "ibn", "acc") == "3.0±2.5"


def test_one_seed_has_no_interval() -> None:
    assert cell([result("er", 0, 40.0)], "bn", "acc") == "40.0"


@pytest.mark.parametrize("values", [[None], [None, 3.0]])
def test_what_was_not_measured_is_a_dash(values: list[float | None]) -> None:
    group = [result("er", s, 40.0, auc) for s, auc in enumerate(values)]
    assert cell(group, "bn", "acc_auc") == "–"
    assert "–" in text(group)


def with_scores(one: Result, setting: str = "online", **added: float) -> Result:
    spec = make_spec({**one.fields, "setting": setting})
    return replace(one, spec=spec, scores={s: {**v, **added} for s, v in one.scores.items()})


def test_a_score_that_was_asked_for_has_a_column() -> None:
    old = result("er", 0, 40.0)
    new = with_scores(result("er-cba", 0, 60.0), learning_acc=77.0, relative_fm=12.5)
    assert "after learning" not in text([old, new])
    shown = text([old, new], 200, ["relative_fm", "learning_acc", "acc"])
    assert shown.index("relative FM ↓") < shown.index("ACC after learning ↑")
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith("er")]
    assert [line[-4:] for line in lines] == [["–"] * 4, ["12.5", "12.5", "77.0", "77.0"]]


def test_a_relative_cost_has_the_digits_of_the_report() -> None:
    runs = [replace(result("er-cba", s, 40.0), cost={"relative_cost": 1.048}) for s in (0, 1)]
    assert "1.05±0.00" in text(runs)


def test_the_time_is_relative_to_that_of_er_as_in_the_report() -> None:
    runs = [result("er", 0, 40.0), result("er-cba", 0, 50.0)]
    timed = [replace(r, seconds={"train": 2.0 + 3 * k}) for k, r in enumerate(runs)]
    lines = [line.split() for line in text(timed, 200, ["relative_time"]).splitlines()]
    assert [line[-1] for line in lines if line and line[0].startswith("er")] == ["1.00", "2.50"]


def test_balanced_accuracy_is_shown_for_long_tails_alone() -> None:
    plain = with_scores(result("er", 0, 40.0), balanced_acc=33.0)
    assert "balanced" not in text([plain])
    tail = with_scores(result("er", 0, 40.0), "gaussian+longtail-0.1", balanced_acc=33.0)
    assert "balanced ACC ↑" in text([tail])
    assert "33.0" in text([tail])
    older = with_scores(result("er", 0, 40.0), "longtail-0.1")
    assert "balanced" not in text([older])
