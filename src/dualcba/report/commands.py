"""`dualcba run` commands that repeat runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from dualcba.data import DATASETS
from dualcba.experiments.matching import own_origin
from dualcba.experiments.result import Fields
from dualcba.report.comparison import Served
from dualcba.report.results import usual

FIRST = ("method", "dataset", "setting", "protocol", "optimizer", "head", "agnostic_from")
"""Fields on which the defaults of other fields depend."""

ALWAYS = {"setting": "online", "protocol": "paper", "imports": None}
"""Defaults of fields that do not depend on others."""


def repeat(served: Served) -> str:
    """Return the command that repeats a group of runs.

    If each seed loaded its own class-agnostic part, SEED stands for the seed in the file's name.
    """
    first = served.results[0]
    fields, found = first.fields, own_origin(first)
    given = served.entry.given.get("agnostic_from")
    if found is not None and given != first.spec.agnostic_from:
        file = given if "SEED" in str(given) else f"{found['dataset']}-sSEED.safetensors"
        fields = fields | {"agnostic_from": file}
    return command(fields, [r.seed for r in served.results])


def command(fields: Fields, seeds: Sequence[int]) -> str:
    """Return the command that runs a spec with some seeds; options at their default are left out.

    The network is always named for the user's own data, where `dualcba run` would choose one.


    >>> command({"method": "er", "dataset": "digits", "lr": 0.1, "method_options": {}}, [0, 1, 2])
    'dualcba run --method er --dataset digits --lr 0.1 --seeds 3'
    >>> from dualcba.experiments import Spec
    >>> command(Spec(method="er", setting="blurry-10", protocol="p10").to_dict(), [0])
    'dualcba run --method er --dataset digits --setting blurry-10 --protocol p10'
    """
    before = usual(fields, FIRST[:4])
    given = [name for name in FIRST[4:] if fields.get(name) != before.get(name)]
    plain = {**usual(fields, (*FIRST[:4], *given)), **ALWAYS, **{k: before.get(k) for k in given}}
    words = ["dualcba", "run"]
    always = {*FIRST[:2], *(["network"] if fields["dataset"] not in DATASETS else [])}
    for name in (*FIRST, *(k for k in fields if k not in (*FIRST, "seed"))):
        value = fields.get(name)
        if value not in (None, []) and (name in always or value != plain.get(name)):
            words += _option(name, value)
    runs = list(seeds)
    if runs != list(range(len(runs))):
        words += ["--seed", str(runs[0])]
    contiguous = runs == list(range(runs[0], runs[0] + len(runs)))
    text = shlex.join(words + (["--seeds", str(len(runs))] if contiguous and len(runs) > 1 else []))
    return text if contiguous else f"{text}  # and seeds {', '.join(map(str, runs[1:]))}"


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if name == "method_options":
        return [w for k, v in value.items() for w in ("--option", f"{k}={json.dumps(v)}")]
    if name == "imports":
        return [w for path in value for w in ("--import", path)]
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list | tuple):
        flat = len(value) > 1 and all(isinstance(v, int) for v in value)
        words = bool(value) and all(isinstance(v, str) for v in value)
        return [f"--{flag}", ",".join(map(str, value)) if flat or words else json.dumps(value)]
    return [f"--{flag}", str(value)]
