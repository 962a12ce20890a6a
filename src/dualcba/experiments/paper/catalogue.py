"""The paper's tables and figures as data: what is run for each, and what the paper reports.

Each is a TOML file in `paper/`: `[spec]` holds fields of all its specs, `[columns]` a piece of a
spec by label, and each of `[rows]` another piece together with the paper's values, one list per
column in the order of `scores`. A value of `nan` is one that the paper does not give, an empty list
a cell that there is not. `evaluate` is the normalisation that the values belong to: `ibn` for
Dual-CBA and `bn` for the others unless the row says otherwise.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments.spec import Spec

NAMES = (
    "main", "semi", "blurry", "offline", "per-task", "normalisation", "transfer-intra",
    "transfer-inter", "bilevel", "architecture", "small-buffers", "computation",
    "feature-shift", "anytime", "posterior", "transitions", "predictions", "stability",
    "ablations", "controls", "pretrained", "alignment",
)  # fmt: skip
"""The paper's tables in its order, its figures, and what we add."""

FROM = "from "
"""`adaptor = "from cifar100"`: the class-agnostic part that Dual-CBA learnt on CIFAR-100."""


@dataclass(frozen=True)
class Entry:
    """One cell of a table or one line of a figure: what is run, and what the paper reports."""

    row: str
    column: str
    spec: dict[str, Any]
    norm: str
    paper: dict[str, float | None]


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    >>> main = experiments()["main"]
    >>> main.entries[0].row, main.entries[0].column, main.entries[0].paper
    ('iCaRL', 'CIFAR-10, M = 200', {'acc': 40.99, 'fm': 26.84})
    """

    name: str
    title: str
    kind: str
    figure: str | None
    scores: tuple[str, ...]
    entries: tuple[Entry, ...]
    note: str


@cache
def experiments() -> dict[str, Experiment]:
    """All of them by name."""
    folder = files("dualcba.experiments") / "paper"
    return {name: _read(name, (folder / f"{name}.toml").read_text("utf-8")) for name in NAMES}


def named(name: str) -> list[Experiment]:
    """One by its name, or `all`.

    >>> named("mian")
    Traceback (most recent call last):
    ...
    ValueError: unknown experiment 'mian', did you mean 'main'? (known: all, main, ...)
    """
    if name == "all":
        return list(experiments().values())
    if name not in experiments():
        raise ValueError(unknown("experiment", name, ["all", *experiments()]))
    return [experiments()[name]]


def _read(name: str, text: str) -> Experiment:
    content = tomllib.loads(text)
    scores = tuple(content["scores"])
    every, columns = content.get("spec", {}), content["columns"]
    entries = []
    for row, given in content["rows"].items():
        fields = dict(given)
        paper = fields.pop("paper", [[math.nan] * len(scores)] * len(columns))
        norm = fields.pop("evaluate", None)
        for (column, part), values in zip(columns.items(), paper, strict=True):
            if values:
                spec = every | part | fields
                numbers = _values(scores, values)
                entries.append(Entry(row, column, spec, norm or _norm(spec), numbers))
    figure = content.get("figure")
    kind = "figure" if figure else "table"
    note = " ".join(content["note"].split())
    return Experiment(name, content["title"], kind, figure, scores, tuple(entries), note)


def _norm(spec: dict[str, Any]) -> str:
    return "ibn" if spec["method"].endswith("-dual-cba") else "bn"


def _values(scores: tuple[str, ...], values: list[float]) -> dict[str, float | None]:
    pairs = dict(zip(scores, values, strict=True))
    if all(map(math.isnan, values)):
        return {}
    return {score: None if math.isnan(value) else value for score, value in pairs.items()}


# ---------------------------------------------------------------------- results that serve a spec


def donor(spec: dict[str, Any]) -> str | None:
    """The dataset on which the class-agnostic part of a spec was learnt, where it was elsewhere.

    >>> donor({"adaptor": "from cifar100"}), donor({"adaptor": "pretrained"}), donor({})
    ('cifar100', None, None)
    """
    adaptor = str(spec.get("adaptor") or "")
    return adaptor.removeprefix(FROM) if adaptor.startswith(FROM) else None


def seedless(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without its seed, in the adaptor's file too: `from` the dataset of that seed's run.

    >>> seedless({"method": "er-dual-cba", "adaptor": "adaptors/cifar10-s2.safetensors", "seed": 2})
    {'method': 'er-dual-cba', 'adaptor': 'from cifar10'}
    """
    out = {name: value for name, value in spec.items() if name != "seed"}
    source, _, seed = Path(str(spec.get("adaptor"))).stem.rpartition("-s")
    if source and seed == str(spec.get("seed")):
        out["adaptor"] = FROM + source
    return out


def complete(spec: dict[str, Any]) -> dict[str, Any]:
    """All fields of a spec, defaults filled in.

    >>> complete({"method": "er", "dataset": "cifar100"})["buffer"]
    2000
    """
    return Spec(**spec).to_dict()


def matches(result: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether a complete result serves a spec, whatever the seeds.

    All fields are equal, but the result may hold more than was asked: scores at any time, where
    only those at task ends are, and further recordings. A field that an older result does not know
    counts as not given.
    """
    if result.get("status") != "complete":
        return False
    got = result["spec"]
    given = {name: value for name, value in spec.items() if value is not None and name in got}
    if not all(_serves(name, got[name], value) for name, value in given.items()):
        return False  # told without the defaults, which cost more
    wanted, before = complete(spec), complete(given)
    return all(_serves(name, got.get(name, before.get(name)), wanted[name]) for name in wanted)


def _serves(field: str, got: Any, wanted: Any) -> bool:
    if field == "seed":
        return True
    if field == "eval_every" and wanted == 0:
        return True
    if field == "record":
        return set(wanted or ()) <= set(got or ())
    source = donor({field: wanted}) if field == "adaptor" else None
    if source is not None:  # a file of that name, as `reproduce` lays it ready for each seed
        return Path(str(got)).stem.rpartition("-s")[0] == source.replace(" ", "-")
    return bool(_plain(got) == _plain(wanted))


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def serving(spec: dict[str, Any], results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results that serve a spec, in order of their seeds, each seed once."""
    found: dict[int, dict[str, Any]] = {}
    for result in results:
        if result["seed"] not in found and matches(result, spec):
            found[result["seed"]] = result
    return [found[seed] for seed in sorted(found)]


def score(result: dict[str, Any], norm: str, name: str) -> float | None:
    """A score of a result by its name in the catalogue; None where it was not measured.

    >>> score({"accuracy_matrix": {"bn": [[90.0, 0.0], [60.0, 80.0]]}}, "bn", "task2")
    80.0
    """
    matrix = result.get("accuracy_matrix", {}).get(norm) or [[]]
    number = name.removeprefix("task")
    if number != name and number.isdigit():
        known = 0 < int(number) <= len(matrix[-1])
        return float(matrix[-1][int(number) - 1]) if known else None
    if name == "seconds_per_task":
        seconds = result.get("seconds", {}).get("train")
        return None if seconds is None or not matrix[-1] else float(seconds) / len(matrix)
    if name in ("parameters", "gpu_memory"):
        cost = result.get("cost", {}).get(name)
        return None if cost is None else cost / 1e6
    value = result.get("scores", {}).get(norm, {}).get(name)
    return None if value is None else float(value)
