"""The results of a sweep: grouped by what varies, the best of each method named."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from dualcba.experiments import Result, Spec
from dualcba.experiments.sweep import read_sweep
from dualcba.report.sweeps import (
    best_data,
    best_lines,
    best_of_each,
    sweep_layouts,
    sweep_table,
    trials,
)
from dualcba.report.tables.terminal import fitting

SWEEP = read_sweep({"buffer": [20, 50], "adaptor_lr": [0.1, 0.01]})


def made(method: str, acc: float | None, seed: int = 0, **given: Any) -> Result:
    spec = Spec(method=method, seed=seed, validation=0.1, **given)
    scores = {"acc": acc, "fm": None if acc is None else acc / 2}
    return Result(spec, seed, {"bn": {"acc": 1.0}, "ibn": scores})


RESULTS = [
    made("er", 60.0, buffer=20), made("er", 62.0, 1, buffer=20), made("er", 70.0, buffer=50),
    made("er-cba", 65.0, buffer=20, adaptor_lr=0.1), made("er-cba", 64.0, buffer=20),
    made("er-cba", None, buffer=50),
]  # fmt: skip


def test_trials_are_ranked_and_those_without_the_score_are_last() -> None:
    found = trials(RESULTS, SWEEP)
    assert [(t.method, t.values, len(t.results)) for t in found] == [
        ("er", (50, None), 1), ("er-cba", (20, 0.1), 1), ("er-cba", (20, 0.01), 1),
        ("er", (20, None), 2), ("er-cba", (50, 0.01), 1),
    ]  # fmt: skip
    assert [(t.method, t.values) for t in best_of_each(found)] == [
        ("er", (50, None)), ("er-cba", (20, 0.1)),
    ]  # fmt: skip


def test_a_score_of_which_less_is_better() -> None:
    sweep = read_sweep({"buffer": [20, 50], "score": "fm"})
    best = best_of_each(trials(RESULTS, sweep))
    assert [(t.method, t.values) for t in best] == [("er", (20,)), ("er-cba", (20,))]
    found = trials(RESULTS, sweep)
    assert [t.score is None for t in found] == [False] * (len(found) - 1) + [True]


def test_trials_are_ranked_by_the_mean_over_seeds() -> None:
    few = [made("er", acc, seed, buffer=20) for seed, acc in enumerate((60.0, 66.0))]
    many = [made("er", acc, seed, buffer=50) for seed, acc in enumerate((62.0, 62.5))]
    assert [t.values[0] for t in trials([*few, *many], SWEEP)] == [20, 50]


def test_the_table_has_a_column_for_each_option_that_varies() -> None:
    table = sweep_table(trials(RESULTS, SWEEP), SWEEP)
    assert [c.title for c in table.columns][:3] == ["method", "buffer", "adaptor lr"]
    assert [row[:3] for row in table.rows][:2] == [("er *", "50", "–"), ("er-cba *", "20", "0.1")]
    assert table.rows[3][4] == "61.0±12.7"
    assert table.title == "Sweep over buffer and adaptor lr: Digits, online"
    assert "by ACC under IBN, 10 % validation split" in table.note


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_has_several_tables_and_nothing_is_cut(width: int) -> None:
    console = Console(file=StringIO(), width=width)
    for table in fitting(sweep_layouts(trials(RESULTS, SWEEP), SWEEP), console):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.split()[:4] for line in shown.splitlines() if line.startswith(" er *")]
    assert lines == [["er", "*", "50", "–"]] * (len(lines) or 1)
    assert len(lines) == {60: 3, 80: 1, 120: 1}[width]
    assert "61.0±12.7" in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"setting": "blurry-10"}, "Sweep over lr: Digits, blurry-10, M = 100"),
        ({"buffer": 50}, "Sweep over lr: Digits, online, M = 50"),
        ({"protocol": "p10"}, "Sweep over lr: Digits, online, M = 100, protocol p10"),
        ({"dataset": "cifar10"}, "Sweep over lr: CIFAR-10, online, M = 200"),
    ],
)
def test_the_title_says_what_was_swept_on(given: dict[str, Any], says: str) -> None:
    sweep = read_sweep({"lr": [0.1, 0.2]})
    found = trials([made("er", 50.0, lr=lr, **given) for lr in (0.1, 0.2)], sweep)
    assert sweep_table(found, sweep).title == says


def test_the_title_leaves_out_what_varies() -> None:
    sweep = read_sweep({"dataset": ["digits", "cifar10"]})
    found = trials([made("er", 50.0, dataset=name) for name in ("digits", "cifar10")], sweep)
    assert sweep_table(found, sweep).title == "Sweep over dataset: online"


def test_the_note_says_how_many_runs_are_complete() -> None:
    found = trials(RESULTS, SWEEP)
    says = "6 of 8 runs are complete; the best may change; sorted by ACC"
    assert sweep_table(found, SWEEP, 8).note.startswith(says)
    assert sweep_table(found, SWEEP, 6).note == sweep_table(found, SWEEP).note


def test_the_best_is_named_with_its_command_on_the_test_data() -> None:
    lines = best_lines(trials(RESULTS, SWEEP), SWEEP)
    assert lines == [
        "best er: buffer 50 (ACC 70.0, IBN)",
        "  on the test data: dualcba run --method er --dataset digits --buffer 50",
        "best er-cba: buffer 20, adaptor lr 0.1 (ACC 65.0, IBN)",
        "  on the test data: dualcba run --method er-cba --dataset digits --buffer 20 "
        "--adaptor-lr 0.1",
    ]
    first, _ = best_data(trials(RESULTS, SWEEP), SWEEP)
    assert first["values"] == {"buffer": 50, "adaptor_lr": None}
    assert (first["mean"], first["seeds"], first["validation"]) == (70.0, [0], 0.1)


def test_a_sweep_over_methods_and_their_options() -> None:
    sweep = read_sweep({"method": ["derpp"], "method_options.alpha": [0.1, 0.5]})
    found = [
        made("derpp", acc, method_options={"alpha": a}) for acc, a in ((50.0, 0.1), (55.0, 0.5))
    ]
    assert best_lines(trials(found, sweep), sweep)[0] == "best derpp: alpha 0.5 (ACC 55.0, IBN)"
