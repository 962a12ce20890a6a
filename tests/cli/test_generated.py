"""The command line is generated from the options: help, files, repeated options, folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from dualcba import __version__
from dualcba.options import (
    GROUPS,
    BenchCommand,
    ReproduceCommand,
    ResumeCommand,
    RunCommand,
    definitions,
)

Run = Callable[..., Any]
QUICK = ("--eval-every", 0, "--batch-size", 32, "--device", "cpu")
COMMANDS = {
    "run": RunCommand, "resume": ResumeCommand, "reproduce": ReproduceCommand,
    "bench": BenchCommand,
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_option_with_its_default_in_its_group(command: str, dualcba: Run) -> None:
    text = dualcba(command, "--help").out
    known = definitions(COMMANDS[command])
    found = re.findall(r"^  --([a-z0-9-]+)", text, re.MULTILINE)
    assert sorted(found) == sorted(
        [(o.flag or o.name).replace("_", "-") for o in known.values()] + ["help"]
    )
    joined = "".join(text.split())  # lines are broken at spaces and hyphens
    for option in known.values():
        assert "".join(option.help.split()) in joined
        if isinstance(option.default, int | float | str) and not isinstance(option.default, bool):
            assert f"(default:{option.default}" in joined
    sections = re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)
    assert [s for s in sections if s in GROUPS] == [
        g for g in GROUPS if any(o.group == g for o in known.values())
    ]


def test_the_help_of_run_begins_with_what_it_does_and_the_main_options(dualcba: Run) -> None:
    text = dualcba("run", "--help").out
    does, _, options = text.partition("Main:")
    assert "Train methods on a stream" in does
    assert "dualcba run --dataset digits --method er,er-dual-cba --seeds 3 --out runs/first" in does
    main = options.partition("\nData:")[0]
    wanted = {"method", "dataset", "setting", "tasks", "network", "buffer", "batch-size", "lr",
              "seed", "seeds", "device", "out"}  # fmt: skip
    assert set(re.findall(r"^  --([a-z-]+)", main, re.MULTILINE)) == wanted


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("learn", ["one subfolder of images per class", "dualcba learn photos", "report.html"]),
        ("ask", ["Prints a line per image", "probability in percent"]),
        ("bench", ["Prints a table", "Accuracy is not measured"]),
        ("run", ["number of runs that one GPU trains at the same time"]),
    ],
)
def test_the_help_says_what_comes_out(command: str, words: list[str], dualcba: Run) -> None:
    text = " ".join(dualcba(command, "--help").out.split())
    assert all(word in text for word in words)


def test_the_list_of_commands_shows_each_description_in_full(dualcba: Run) -> None:
    lines = dualcba("--help").out.partition("Commands:")[2]
    assert "..." not in lines


def test_a_line_below_the_table_explains_its_scores(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--out", "x", *QUICK)
    table, legend = got.out.split("ACC: ")
    assert "ACC" in table
    for word in ("FM: forgetting", "AUC: ", "BN: ", "IBN: "):
        assert word in legend
    assert "task known" not in legend
    asked = "--record", "task-aware", "--score", "bwt"
    legend = dualcba("run", "--method", "er", "--out", "z", *asked, *QUICK).out.split("ACC: ")[1]
    for word in ("BWT: backward transfer", "ACC, task known: "):
        assert word in " ".join(legend.split())
    assert "ACC: " not in dualcba("run", "--method", "er", "--out", "y", "--json", *QUICK).out


def _seconds(*args: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *args], check=True, capture_output=True)
    return time.perf_counter() - start


@pytest.mark.parametrize("args", [("--help",), ("run", "--help"), ("--version",)])
def test_help_needs_no_torch(args: tuple[str, ...]) -> None:
    code = (
        f"import sys; sys.argv = ['dualcba', *{args!r}]\n"
        "from dualcba.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_help_takes_less_than_half_the_time_of_importing_torch() -> None:
    help_ = min(_seconds("-m", "dualcba", "run", "--help") for _ in range(3))
    assert help_ < min(_seconds("-c", "import torch") for _ in range(3)) / 2


def test_version(dualcba: Run) -> None:
    assert dualcba("--version").out == f"dualcba {__version__}\n"


@pytest.mark.parametrize("what", ["methods", "datasets", "settings", "networks", "experiments"])
def test_lists_as_json(what: str, dualcba: Run) -> None:
    names = [line.split()[0] for line in dualcba("list", what).out.splitlines()]
    found = json.loads(dualcba("list", what, "--json").out)
    assert [one["name"] for one in found] == names


def test_a_method_may_be_given_several_times(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--method", "er-cba,er", "--json", "--out", "x", *QUICK)
    assert [r["method"] for r in json.loads(got.out)] == ["er", "er-cba"]


def test_everything_may_stand_in_a_file(dualcba: Run, tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    lines = ['method = "er"', "eval_every = 0", "batch_size = 32", 'out = "there"', "json = true",
             'device = "cpu"', 'engine = "eager"', 'precision = "fp32"', "jobs = 1", "abreast = 1",
             "quiet = false", 'data_dir = "nowhere"', "[method_options]"]  # fmt: skip
    path.write_text("\n".join(lines))
    got = dualcba("run", path)
    assert (got.code, got.err) == (0, "")
    assert [r["method"] for r in json.loads(got.out)] == ["er"]
    assert (got.folder / "there" / "plan.json").is_file()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("devise = 'cpu'", ["'devise'", "did you mean 'device'"]),
        ("device = 3", ["device is 3"]),
        ("out = 3", ["out is 3"]),
        ("jobs = 0", ["jobs is 0", "at least 1"]),
        ("quiet = 'yes'", ["quiet is 'yes'", "True or False"]),
        ("engine = 'fast'", ["engine is 'fast'", "'eager'"]),
    ],
)
def test_a_wrong_line_of_a_file(line: str, words: list[str], dualcba: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(line + "\n")
    got = dualcba("run", tmp_path / "x.toml")
    assert got.code == 2
    (only,) = got.lines
    assert all(word in only for word in words), only


def test_without_out_each_call_has_a_folder_of_its_own(dualcba: Run, tmp_path: Path) -> None:
    got = dualcba("run", "--method", "er", "--quiet", *QUICK)
    (folder,) = (got.folder / "runs").iterdir()
    assert folder.name.startswith("digits-online-")
    (tmp_path / "mine.toml").write_text('method = "er"\neval_every = 0\nbatch_size = 32\n')
    assert dualcba("run", tmp_path / "mine.toml", "--quiet").code == 0
    assert (got.folder / "runs" / "mine").is_dir()
    assert not (got.folder / "runs" / "demo").exists()


def test_abreast_on_a_cpu_says_that_it_does_nothing(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--abreast", 4, "--quiet", "--out", "x", *QUICK)
    assert got.code == 0
    assert got.lines == [
        "dualcba: --abreast has no effect on a CPU; --jobs sets the number of processes"
    ]


def check_degraded(output: bytes, encoding: str) -> None:
    text = output.decode(encoding)
    assert "2 results in x" in text
    assert "ACC ^" in text  # ↑
    assert "?" not in text


TWO_SEEDS = ("run", "--method", "er", "--seeds", 2, "--out", "x", *QUICK)


def test_output_that_cannot_be_encoded_degrades(tmp_path: Path) -> None:
    """In a process whose terminal has ASCII only."""
    done = subprocess.run(
        [sys.executable, "-m", "dualcba", *map(str, TWO_SEEDS)], cwd=tmp_path, capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_degraded(done.stdout, "ascii")


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_other_encodings_degrade_too(
    encoding: str, dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {name: TextIOWrapper(BytesIO(), encoding, "strict") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    assert dualcba(*TWO_SEEDS).code == 0
    streams["stdout"].flush()
    check_degraded(streams["stdout"].buffer.getvalue(), encoding)  # type: ignore[attr-defined]


def test_a_script_for_shell_completion() -> None:
    """Called from bash: with shellingham installed, the shell is that of the parent process."""
    command = f"'{sys.executable}' -m dualcba --show-completion bash; exit"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False,
        env={**os.environ, "SHELL": "/bin/bash"},
    )  # fmt: skip
    assert "complete" in done.stdout + done.stderr
