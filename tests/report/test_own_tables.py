"""Tables of one's own: read like the paper's, and refused with one line."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from dualcba.experiments.paper.catalogue import FRONTIER, NAMES, experiments
from dualcba.report.own_tables import parse_table, read_table

MINE = """
title = "My table"
scores = ["acc", "acc_auc", "task2"]
figure = ["anytime", "stability"]
seeds = 5

[spec]
eval_every = 20

[columns]
"M = 50" = { buffer = 50 }
"M = 200" = { buffer = 200 }

[rows.ER]
method = "er"

[rows."ER, IBN"]
method = "er"
statistics = "ibn"

[rows."alpha = 0.1"]
method = "derpp"
method_options = { alpha = 0.1 }
paper = [[50.0, 60.0, nan], []]
"""


def test_columns_times_rows() -> None:
    own = parse_table("mine", MINE)
    one = own.experiment
    assert (one.name, one.title, own.seeds, own.toml) == ("mine", "My table", 5, MINE)
    assert (one.scores, one.figures) == (("acc", "acc_auc", "task2"), ("anytime", "stability"))
    assert [(e.row, e.column, e.spec.buffer, e.spec.eval_every) for e in one.entries] == [
        ("ER", "M = 50", 50, 20), ("ER", "M = 200", 200, 20),
        ("ER, IBN", "M = 50", 50, 20), ("ER, IBN", "M = 200", 200, 20),
        ("alpha = 0.1", "M = 50", 50, 20),
    ]  # fmt: skip
    assert [e.statistics for e in one.entries] == ["bn", "bn", "ibn", "ibn", "bn"]
    assert one.entries[-1].paper == {"acc": 50.0, "acc_auc": 60.0, "task2": None}
    assert one.entries[-1].spec.method_options == {"alpha": 0.1}


def test_rows_alone_are_enough() -> None:
    own = parse_table("short", "[rows.ours]\n[rows.theirs]\nmethod = 'er'\n")
    assert own.seeds is None
    assert [(e.row, e.column, e.method, e.spec.dataset) for e in own.experiment.entries] == [
        ("ours", "short", "er-dual-cba", "digits"), ("theirs", "short", "er", "digits"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, *FRONTIER])
def test_the_papers_files_are_tables_of_ones_own_too(name: str) -> None:
    text = (files("dualcba.experiments") / "paper" / f"{name}.toml").read_text("utf-8")
    assert parse_table(name, text).experiment.entries == experiments()[name].entries


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "rows is None, expected at least one, each a table of fields"),
        ("[rows]", "rows is {}, expected at least one"),
        ("rows = 3", "rows is 3, expected at least one"),
        ("[row.a]", "unknown key 'row', did you mean 'rows'?"),
        ("[rows]\na = 3", "rows.a is 3, expected fields and their values"),
        ("[rows.a]\nbufer = 3", "unknown field of rows.a 'bufer', did you mean 'buffer'?"),
        ("[rows.a]\nseed = 3", "unknown field of rows.a 'seed'"),
        ("[rows.a]\n[columns.b]\nx = 1", "unknown field of columns.b 'x'"),
        ("[rows.a]\n[spec]\nx = 1", "unknown field of spec 'x'"),
        ("[rows.a]\nbuffer = 0", "row 'a', column 'mine': buffer is 0, expected a whole number"),
        ("[rows.a]\nmethod = 'ee'", "row 'a', column 'mine': unknown method 'ee'"),
        ("[rows.a]\nmethod = 3", "row 'a', column 'mine': "),
        ("[rows.a]\nstatistics = 'gn'", "rows.a.statistics is 'gn', expected 'bn' or 'ibn'"),
        ("[rows.a]\ndonor = 'digits'", "rows.a.donor is 'digits', expected 'cifar10' or"),
        ("scores = ['accuracy']\n[rows.a]", "unknown score 'accuracy'"),
        ("scores = 'acc'\n[rows.a]", "scores is 'acc', expected some of acc,"),
        ("figure = 'curve'\n[rows.a]", "unknown figure 'curve'"),
        ("figure = [3]\n[rows.a]", "figure is [3], expected some of anytime,"),
        ("title = 3\n[rows.a]", "title is 3, expected text"),
        ("seeds = 0\n[rows.a]", "seeds is 0, expected a whole number of at least 1"),
        ("[rows.a]\npaper = [1.0]", "rows.a.paper is [1.0], expected 1 lists"),
        ("[rows.a]\npaper = [[1.0]]", "rows.a.paper is [[1.0]], expected 1 lists, one per column"),
        ("[rows.a]\npaper = [['x', 1.0]]", "rows.a.paper is 'x', expected numbers"),
    ],
)
def test_what_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {says}")) as error:
        read_table(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.toml is missing, expected a TOML file"):
        read_table(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ValueError, match=r"bad\.toml is not a TOML file"):
        read_table(tmp_path / "bad.toml")


def test_files_whose_names_are_not_latin_are_tables_of_their_own(tmp_path: Path) -> None:
    """Tables of one name would replace each other's files."""
    paths = [tmp_path / f"{stem}.toml" for stem in ("表", "図", "größe", "grüße")]
    for path in paths:
        path.write_text(MINE, encoding="utf-8")
    names = [read_table(path).experiment.name for path in paths]
    assert names == ["表", "図", "größe", "grüße"]
