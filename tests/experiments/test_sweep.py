"""Sweeps: which runs they are, and what they refuse."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments.purpose import (
    AskedTable,
    Purpose,
    add_sweep,
    add_tables,
    read_purpose,
)
from dualcba.experiments.sweep import Range, Sweep, read_sweep, sweep_specs

LR = {"low": 0.001, "high": 0.1, "log": True}


def test_a_grid_is_every_combination() -> None:
    sweep = read_sweep({"buffer": [20, 50], "lr": [0.1, 0.2, 0.1]})
    assert [tuple(p.values()) for p in sweep.points()] == [
        (20, 0.1), (20, 0.2), (50, 0.1), (50, 0.2),
    ]  # fmt: skip


def test_each_method_and_seed_is_run_at_each_point() -> None:
    specs = sweep_specs(
        read_sweep({"buffer": [20, 50]}), {"method": ["er", "er-cba"], "seeds": 2, "seed": 3}
    )
    found = [(s.buffer, s.method, s.seed) for s in specs]
    assert found == [(b, m, k) for b in (20, 50) for m in ("er", "er-cba") for k in (3, 4)]


def test_runs_are_scored_on_a_validation_split_unless_it_is_given() -> None:
    sweep = read_sweep({"buffer": [20]})
    assert [s.validation for s in sweep_specs(sweep, {})] == [0.1]
    assert [s.validation for s in sweep_specs(sweep, {"validation": 0.2})] == [0.2]
    assert [s.validation for s in sweep_specs(sweep, {"validation": 0.0})] == [0.0]


@pytest.mark.parametrize(
    ("score", "given", "says"),
    [
        ("min_acc", {"eval_every": 0}, "score is 'min_acc' and eval_every is 0, expected steps "
         "between evaluations, at least 1, or one of acc, fm, bwt, newest"),
        ("acc_auc", {"anytime": "bn"}, "score is 'acc_auc' with statistics 'ibn' and anytime is "
         "'bn', expected 'both' or 'ibn', or statistics 'bn'"),
        ("fm", {"tasks": 1}, "score is 'fm' and tasks is 1, expected 2 tasks or more, or one of "
         "acc, acc_auc, acc_auc_last"),
    ],
)  # fmt: skip
def test_a_score_that_a_run_does_not_measure_is_refused(
    score: str, given: dict[str, Any], says: str
) -> None:
    sweep = read_sweep({"buffer": [20, 50], "score": score})
    assert len(sweep_specs(sweep, {})) == 2
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        sweep_specs(sweep, given)


def test_scores_of_task_ends_need_no_evaluations_between_them() -> None:
    for score in ("acc", "fm", "bwt", "newest"):
        sweep = read_sweep({"buffer": [20], "score": score})
        assert len(sweep_specs(sweep, {"eval_every": 0, "anytime": "bn"})) == 1
    sweep = read_sweep({"eval_every": [0, 5], "score": "acc_auc"})
    with pytest.raises(ValueError, match="eval_every is 0"):
        sweep_specs(sweep, {})


def test_a_method_without_an_option_is_run_once_and_not_at_each_of_its_values() -> None:
    specs = sweep_specs(read_sweep({"adaptor_lr": [0.1, 0.01]}), {"method": ["er", "er-cba"]})
    assert [(s.method, s.adaptor_lr) for s in specs] == [
        ("er", None), ("er-cba", 0.1), ("er-cba", 0.01),
    ]  # fmt: skip


def test_options_of_the_method_itself() -> None:
    sweep = read_sweep({"method_options.alpha": [0.1, 0.5]})
    specs = sweep_specs(sweep, {"method": "derpp", "method_options": {"beta": 1.0}})
    assert [s.method_options for s in specs] == [
        {"beta": 1.0, "alpha": 0.1}, {"beta": 1.0, "alpha": 0.5},
    ]  # fmt: skip


def test_options_that_only_one_of_the_methods_has() -> None:
    sweep = read_sweep({"method_options.alpha": [0.1, 0.5]})
    specs = sweep_specs(sweep, {"method": ["er", "derpp-cba"], "method_options": {"beta": 1.0}})
    assert [(s.method, s.method_options) for s in specs] == [
        ("er", {}), ("derpp-cba", {"beta": 1.0, "alpha": 0.1}),
        ("derpp-cba", {"beta": 1.0, "alpha": 0.5}),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="the method 'er' has no option 'alhpa', expected none"):
        sweep_specs(read_sweep({"method_options.alhpa": [1]}), {"method": ["er", "derpp"]})


def test_points_with_one_name_are_all_run(monkeypatch: Any) -> None:
    monkeypatch.setattr("dualcba.experiments.spec.DIGITS", 1)
    specs = sweep_specs(read_sweep({"lr": [k / 100 for k in range(1, 21)]}), {"method": "er"})
    assert len(specs) == 20 > len({s.name for s in specs})


def test_some_points_of_a_grid_are_drawn_by_the_seed() -> None:
    sweep = read_sweep({"buffer": list(range(1, 41)), "samples": 10})
    first, again, other = (
        [s.buffer for s in sweep_specs(sweep, {"method": "er", "seed": k})] for k in (3, 3, 4)
    )
    assert first == again == sorted(set(first))
    assert len(first) == len(other) == 10
    assert first != other
    drawn = [b for k in range(100) for b in (p["buffer"] for p in sweep.points(k))]
    assert sorted(set(drawn)) == list(range(1, 41))  # any of them


def test_ranges_are_drawn_by_the_seed_and_crossed_with_lists() -> None:
    sweep = read_sweep(
        {"buffer": [20, 50], "lr": LR, "outer_every": {"low": 1, "high": 9}, "samples": 30}
    )
    points = sweep.points(seed=1)
    assert points == sweep.points(seed=1) != sweep.points(seed=2)
    assert len(points) == 60
    assert [p["lr"] for p in points[:30]] == [p["lr"] for p in points[30:]]
    assert {type(p["outer_every"]) for p in points} == {int}
    assert all(1 <= p["outer_every"] <= 9 and 0.001 <= p["lr"] <= 0.1 for p in points)
    below = sum(p["lr"] < 0.01 for p in points[:30])  # half of the range in its logarithm
    assert 8 <= below <= 22


def test_a_uniform_range_and_a_logarithmic_one() -> None:
    assert Range(0.0, 1.0).at(0.25, whole=False) == 0.25
    assert math.isclose(float(Range(1e-4, 1.0, log=True).at(0.5, whole=False)), 1e-2)
    assert (Range(2, 5).at(0.0, whole=True), Range(2, 5).at(1.0, whole=True)) == (2, 5)


def test_samples_of_a_grid_are_different_points_of_it() -> None:
    sweep = read_sweep({"buffer": list(range(1, 11)), "lr": [0.1, 0.2], "samples": 7})
    points = sweep.points(0)
    assert len(points) == 7
    assert len({tuple(p.values()) for p in points}) == 7
    assert len(read_sweep({"buffer": [1, 2], "samples": 9}).points()) == 2


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "the sweep is empty, expected at least one option with values"),
        ({"samples": 3}, "the sweep is empty"),
        ({"bufer": [1]}, "unknown option of the sweep 'bufer', did you mean 'buffer'?"),
        ({"seed": [1]}, "seed is in the sweep, expected --seed, which applies to the whole"),
        ({"validation": [0.1]}, "validation is in the sweep, expected --validation"),
        ({"method_options.": [1]}, "unknown option of the sweep"),
        ({"buffer": []}, "buffer is [], expected at least one value"),
        ({"buffer": [20, 0]}, "buffer is 0, expected a whole number of at least 1"),
        ({"norm": ["bn", "ln"]}, "norm is 'ln', expected 'bn' or"),
        ({"lr": LR}, "lr is a range, expected `samples`, the number of draws, as well"),
        ({"lr": LR, "samples": 0}, "samples is 0, expected a whole number of at least 1"),
        ({"lr": LR, "samples": "5"}, "samples is '5', expected a whole number"),
        ({"lr": {"low": 1.0, "high": 0.1}, "samples": 2}, "expected a range: low and high"),
        ({"lr": {"low": 0.1}, "samples": 2}, "expected a range: low and high"),
        ({"lr": LR | {"step": 1}, "samples": 2}, "expected a range: low and high"),
        ({"lr": LR | {"log": 1}, "samples": 2}, "expected a range: low and high"),
        ({"lr": LR | {"low": 0}, "samples": 2}, "lr.low is 0, expected a number above 0 if log"),
        ({"lr": {"low": True, "high": 2}, "samples": 2}, "expected a range: low and high"),
        ({"norm": {"low": 1, "high": 2}, "samples": 2}, "expected a range: low and high"),
        ({"buffer": [1], "score": "accuracy"}, "score is 'accuracy', expected 'acc' or"),
        ({"buffer": [1], "statistics": "gn"}, "statistics is 'gn', expected 'bn' or 'ibn'"),
    ],
)
def test_what_a_sweep_refuses(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        read_sweep(table)
    assert "\n" not in str(error.value)


def test_an_option_is_given_or_swept() -> None:
    with pytest.raises(ValueError, match="lr is given and in the sweep, expected only one"):
        sweep_specs(read_sweep({"lr": [0.1]}), {"lr": 0.2})


def test_methods_that_vary_have_the_options_that_vary_which_they_have() -> None:
    adaptor = read_sweep({"method": ["er", "er-cba"], "adaptor_lr": [0.01, 0.1]})
    assert [(s.method, s.adaptor_lr) for s in sweep_specs(adaptor, {})] == [
        ("er", None), ("er-cba", 0.01), ("er-cba", 0.1),
    ]  # fmt: skip
    own = read_sweep({"method": ["er", "derpp"], "method_options.alpha": [0.1, 0.5]})
    assert [(s.method, s.method_options) for s in sweep_specs(own, {})] == [
        ("er", {}), ("derpp", {"alpha": 0.1}), ("derpp", {"alpha": 0.5}),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'er' has no option 'alpha'"):
        sweep_specs(read_sweep({"method": ["er"], "method_options.alpha": [0.1]}), {})


# ---------------------------------------------------------------------- what a folder is for


def test_a_folder_says_what_its_runs_are_for(tmp_path: Path) -> None:
    assert read_purpose(tmp_path) is None
    sweep = read_sweep({"buffer": [20], "lr": LR, "samples": 2, "score": "fm"})
    add_sweep(tmp_path, sweep, ["a", "b"])
    add_tables(tmp_path, [AskedTable("main", "small")])
    add_tables(tmp_path, [AskedTable("main"), AskedTable("mine", toml="x = 1")])
    add_tables(tmp_path, [AskedTable("mine", toml="x = 2")])
    add_sweep(tmp_path, sweep, ["a", "b", "c"])
    found = read_purpose(tmp_path)
    assert isinstance(found, Purpose)
    ((asked),) = found.sweeps
    assert (asked.sweep, asked.runs) == (sweep, ["a", "b", "c"])
    assert [(t.name, t.scale, t.toml) for t in found.tables] == [
        ("main", "small", None), ("main", "paper", None), ("mine", "paper", "x = 2"),
    ]  # fmt: skip
    assert json.loads((tmp_path / "purpose.json").read_text())["schema"] == 1


def test_a_second_call_of_one_sweep_does_not_replace_other_runs(tmp_path: Path) -> None:
    """It may be that of another method."""
    sweep = read_sweep({"buffer": [20, 50]})
    for runs in (["er-20", "er-50"], ["er-cba-20", "er-cba-50"]):
        add_sweep(tmp_path, sweep, runs)
    found = read_purpose(tmp_path)
    assert found is not None
    assert [one.runs for one in found.sweeps] == [["er-20", "er-50"], ["er-cba-20", "er-cba-50"]]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 2}', '{"schema": 1, "tables": 3}', '{"schema": 1, "tables": [3]}',
     '{"schema": 1, "sweeps": [{}]}', '{"schema": 1, "tables": [{"nme": 1}]}'],
)  # fmt: skip
def test_a_damaged_purpose_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "purpose.json").write_text(text)
    with pytest.raises(ValueError, match=r"purpose\.json cannot be read: .*, expected") as error:
        read_purpose(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"purpose\.json cannot be read: .*, expected"):
        add_sweep(tmp_path, read_sweep({"buffer": [20]}), ["a"])
    assert (tmp_path / "purpose.json").read_text() == text


def test_it_can_be_written_and_read_as_a_table() -> None:
    sweep = Sweep({"buffer": [20]}, {"lr": Range(0.001, 0.1, log=True)}, 5, "fm", "bn")
    assert read_sweep(sweep.to_dict()) == sweep
