"""`dualcba run --sweep` and `[sweep]` in a TOML file, from the options to the closing table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]
QUICK = ("--eval-every", 0, "--batch-size", 100, "--tasks", 2, "--device", "cpu", "--jobs", 1)


def test_a_sweep_from_a_file_resumed_and_reported(dualcba: Run, tmp_path: Path) -> None:
    file = tmp_path / "tune.toml"
    file.write_text(
        'method = ["er", "er-cba"]\nout = "s"\n[sweep]\nbuffer = [20, 60]\nsamples = 2\n'
        "adaptor_lr = { low = 0.001, high = 0.1, log = true }\n"
    )
    got = dualcba("run", file, *QUICK)
    assert got.code == 0
    for word in ("Sweep over buffer and adaptor lr", "10 % validation split", "best er: buffer",
                 "best er-cba: buffer", "on the test data: dualcba run --method er ",
                 "6 results in s"):  # fmt: skip
        assert word in got.out
    results = [json.loads(p.read_text()) for p in (got.folder / "s").glob("*/result.json")]
    assert {r["spec"]["validation"] for r in results} == {0.1}
    assert sorted(r["buffer"] for r in results if r["method"] == "er") == [20, 60]
    best = got.out[got.out.index("best ") :]
    next((got.folder / "s").glob("*/result.json")).unlink()
    again = dualcba("resume", "s", "--device", "cpu", "--jobs", 1)
    assert again.code == 0
    assert again.out[again.out.index("best ") :] == best


def test_the_command_line_names_the_best_as_json(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--sweep", "buffer=20,60", "--sweep", "score=fm",
                  "--sweep", "statistics=bn", "--validation", 0.2, "--out", "s", "--json",
                  *QUICK)  # fmt: skip
    printed = json.loads(got.out)
    (best,) = printed["best"]
    forgetting = {r["buffer"]: r["scores"]["bn"]["fm"] for r in printed["results"]}
    assert set(forgetting) == {20, 60}
    assert best["mean"] == min(forgetting.values()) == forgetting[best["values"]["buffer"]]
    assert best["validation"] == 0.2
    assert "--validation" not in best["test_command"]


def test_mistakes_are_one_line_and_nothing_is_written(dualcba: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("sweep = 3\n")
    for given, says in (
        (("--sweep", "lr"), "--sweep is 'lr', expected name=value,value"),
        (("--sweep", "lr=0.1:0.2"), "lr is a range, expected `samples`"),
        (("--sweep", "adaptor_lr=0.1", "--method", "er"), "adaptor_lr is 0.1, expected no value"),
        (("--sweep", "lr=0.1,0.2", "--sweep", "score=min_acc", "--eval-every", 0),
         "score is 'min_acc' and eval_every is 0, expected steps between evaluations"),
        ((file,), "sweep is 3, expected names and values"),
    ):  # fmt: skip
        got = dualcba("run", *given)
        assert (got.code, got.out, got.files) == (2, "", [])
        assert says in got.err
        assert got.err.count("\n") == 1


def test_a_name_that_is_given_twice_is_refused(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--sweep", "lr=0.1", "--sweep", "lr=0.2")
    assert got.code == 2
    assert "--sweep lr is given twice, expected each name once" in got.err
    got = dualcba("run", "--method", "derpp", "--option", "alpha=0.1", "--option", "alpha=0.9")
    assert "--option alpha is given twice, expected each name once" in got.err
