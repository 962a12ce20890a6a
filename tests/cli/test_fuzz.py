"""Random command lines and TOML files: accepted, or refused with one line; never a traceback.

`DUALCBA_FUZZ=full` tries 10,000 of each instead of a sample.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fuzzing import attempts, one_line_or_fine

from dualcba.options import ReproduceCommand, ResumeCommand, RunCommand, definitions

COUNT = attempts(150)

WORDS = [
    "", " ", "-1", "0", "1", "2", "5", "1e39", "-1e39", "1e-400", "nan", "inf", "-inf", "1.5",
    "99999999999999999999", "9" * 400, "0x10", "1_000", "true", "None", "null", "[]", "{}", "[[1]]",
    "[1,2", "2,3,5", "1,,2", ",", "9,8,7,6,5,4,3,2,1,0", "natural", "shuffled", "er", "er-dual-cba",
    "er,er-cba", "er-dual", "digits", "cifar10", "~nosuchuser/x", "~", "/", ".", "..", "/dev/null",
    "a[b", "*", "\\", "\t", "é", "日本", "\ud800",
    "%s", "{0}", "a=1", "a={}", 'a={"b":[1,{"c":2}]}',
    "alpha=1e999", "alpha=NaN", "alpha=-1", "=", "a=", "online", "blurry-10", "blurry-100",
    "blurry-nan", "semi-0.2", "semi-1e-9", "offline", "mlp", "resnet18", "cpu", "cuda", "cuda:99",
    "meta", "xpu", "auto", "fp32", "split", "concat", "given", "inferred", "ema", "bn", "ibn",
    "logit", "probability", "single", "individual", "none", "pretrained", "predictions,alignment",
    "main", "all", "paper", "small", "--", "--help", "-h", "@file", "'", '"', "$HOME",
    ";", "x" * 5000, "a" + "=[" * 1000, "alpha=" + "[" * 5000, "alpha=" + "[" * 60 + "]" * 60,
    'a={"b":' * 300, "/proc/x", "/dev/null/x", "a[/b]", "a\nb", "[" * 3000, "tasks=[[1],2]",
]  # fmt: skip


COMMANDS = {"run": RunCommand, "resume": ResumeCommand, "reproduce": ReproduceCommand}


def random_command(rng: random.Random) -> list[str]:
    command = rng.choice(list(COMMANDS))
    words = [command, *rng.choices(WORDS, k=rng.choice([0, 0, 1, 1, 2]))]
    for option in rng.choices(list(definitions(COMMANDS[command]).values()), k=rng.randint(0, 4)):
        flag = "--" + (option.flag or option.name).replace("_", "-")
        words += [flag] if rng.random() < 0.15 else [flag, rng.choice(WORDS)]
    return words


def test_random_command_lines(dry_call: Any) -> None:
    rng = random.Random(15)
    for _ in range(COUNT):
        words = random_command(rng)
        one_line_or_fine(*dry_call(*words), words)


VALUES = [
    "0", "1", "-1", "3", "1.5", "1e39", "nan", "inf", "-inf", "true", "false", "''", "'er'", "'x'",
    "[]", "[1]", "[[1]]", "[1, 'a']", "{}", "{ a = 1 }", "{ a = { b = [1, { c = 2 }] } }",
    "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "99999999999999999999", "['er', 3]",
    "'~nosuchuser/x'", "'digits'", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "[5, 5]", "'a[b'", "'''\n'''",
    "[1979-05-27]", "[[1], 07:32:00]", "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000,
    "{ a = " * 60 + "1" + " }" * 60, "9" * 5000, "[[0, 1], 2]", "'/proc/x'", "'a[/b]'",
]  # fmt: skip


def test_random_files(dry_call: Any, tmp_path: Path) -> None:
    rng = random.Random(16)
    names = [*definitions(RunCommand), "options", "adaptor", "x", "a.b", "'quoted name'"]
    for k in range(COUNT):
        lines = [f"{name} = {rng.choice(VALUES)}" for name in rng.sample(names, rng.randint(0, 4))]
        if rng.random() < 0.1:
            lines.append(rng.choice(["[table]", "[[tables]]", "=", "[", "a", "\x00", "a = \udcff"]))
        path = tmp_path / f"{k}.toml"
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
        one_line_or_fine(*dry_call("run", str(path)), lines)


OTHERS = [
    ["report"],
    ["report", "--json"],
    ["list"],
    ["data", "check"],
    ["data", "check", "--json"],
]
LARGE = ("/", "..", "~", "cifar10")  # folders that take long to search, and what may be there


def test_random_words_for_other_commands(dry_call: Any) -> None:
    rng = random.Random(18)
    words = [word for word in WORDS if word not in LARGE]
    for _ in range(COUNT):
        given = [*rng.choice(OTHERS), *rng.choices(words, k=rng.choice([0, 1, 1, 1, 2]))]
        if rng.random() < 0.2:
            given += ["--data-dir", rng.choice(words)]
        one_line_or_fine(*dry_call(*given), given)
