"""Mistakes in files, options and folders are one line that says what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NESTED = "[" * 5000 + "]" * 5000
SHORT = ("--method", "er", "--tasks", "2,2", "--network", "mlp", "--batch-size", "8")


@pytest.mark.parametrize("value", [NESTED, '{"a":' * 5000, "[" * 60 + "]" * 60])
def test_a_nested_option(dualcba: Any, value: str) -> None:
    done = dualcba("run", "--method", "derpp", "--option", f"alpha={value}")
    assert done.code == 2
    assert len(done.lines) == 1
    assert "alpha" in done.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a = {NESTED}", "is not a TOML file: lists or objects are nested deeper"),
        ("method_options = " + "{ a = " * 60 + "1" + " }" * 60, "nested deeper"),
        ("tasks = [1979-05-27]", "tasks is [datetime.date(1979, 5, 27)], expected a number"),
        ("tasks = [[1], 07:32:00]", "tasks is [[1], datetime.time(7, 32)], expected a number"),
        ("class_order = [1979-05-27]", "class_order is [datetime.date(1979, 5, 27)], expected"),
        ("lr = 1979-05-27T07:32:00Z", "lr is datetime.datetime(1979"),
        ("lr = " + "9" * 5000, "x.toml is not a TOML file: "),
    ],
)
def test_a_toml_file(dualcba: Any, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    done = dualcba("run", path)
    assert done.code == 2
    assert len(done.lines) == 1
    assert says in done.err
    assert len(done.err) < 3000


@pytest.mark.parametrize("command", [("report",), ("resume",), ("reproduce", "main", "--out")])
@pytest.mark.parametrize("content", ["{}", NESTED, '{"a":' * 5000, "9" * 5000, "null", "[1]"])
def test_damaged_results_and_plans(
    dualcba: Any, tmp_path: Path, command: tuple[str, ...], content: str
) -> None:
    (tmp_path / "x" / "run").mkdir(parents=True)
    (tmp_path / "x" / "run" / "result.json").write_text(content)
    (tmp_path / "x" / "plan.json").write_text(content)
    done = dualcba(*command, tmp_path / "x")
    assert done.code == 2
    assert len(done.lines) == 1
    assert "expected" in done.err or "Exceeds the limit" in done.err


@pytest.mark.parametrize("out", ["/proc/x", "/proc/self/x/y", "/sys/x"])
def test_a_folder_that_cannot_be_made(dualcba: Any, out: str) -> None:
    if not Path(out).parents[-2].is_dir():
        pytest.skip("needs Linux")
    done = dualcba("run", "--method", "er", "--out", out)
    assert (done.code, len(done.lines)) == (2, 1)
    assert f"{out} cannot be made: " in done.err
    assert "expected a folder for the results that can be written, as --out" in done.err


@pytest.mark.parametrize("folder", ["a[b", "[b]", "a[", "[/red]", "a\nb"])
def test_a_dataset_whose_path_has_brackets(dualcba: Any, tmp_path: Path, folder: str) -> None:
    """Rich reads `[b]` in a table's title as markup, and fails at `[/b]`."""
    x, y = np.random.default_rng(0).random((40, 4), np.float32), np.arange(40) % 4
    path = tmp_path / folder / "own].npz"
    path.parent.mkdir(parents=True)
    np.savez(path, x=x, y=y)
    done = dualcba("run", "--dataset", path, *SHORT, "--out", tmp_path / "out[/x]")
    assert done.code == 0, done.err
    assert "1 result in" in done.out
    if "\n" not in folder:
        assert f"{folder}/own]" in "".join(line.strip() for line in done.out.splitlines())
    assert dualcba("report", tmp_path / "out[/x]").code == 0
    assert dualcba("data", "check", path).code == 0


def test_a_line_break_in_a_name_is_not_one_in_the_error(dualcba: Any) -> None:
    done = dualcba("resume", "no\nsuch\rfolder\u2028here")
    assert (done.code, len(done.lines)) == (2, 1)


def test_data_check_says_what_it_compares(dualcba: Any) -> None:
    text = " ".join(dualcba("data", "check", "--help").out.split())
    assert "digest" in text
    assert "each class has training and test samples" in text


def test_a_plan_says_which_field_is_unknown(dualcba: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"specs": [{"buffers": 1}]}))
    assert "unknown field 'buffers', did you mean 'buffer'?" in dualcba("resume", tmp_path).err
