"""The runs below a folder: read, grouped by all but the seed, named by what tells them apart."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.data.stream import split_classes
from dualcba.experiments.paper.catalogue import Entry, donor, seedless
from dualcba.experiments.spec import Spec
from dualcba.experiments.store import RESULT
from dualcba.methods import METHODS
from dualcba.randomness import generator
from dualcba.report.comparison import Result, Served
from dualcba.report.names import KINDS, method_title, split_method

DATASETS = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet",
    "digits": "Digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST",
}  # fmt: skip

NAMED = ("method", "dataset", "setting", "buffer")
"""Fields by which a run is called; the others have a usual value beside them."""

SCORING = ("eval_every", "anytime", "record")
"""Fields that say how a run was scored, not what it is."""


@dataclass(frozen=True)
class Collection:
    """Runs on one dataset, in one setting, with one buffer."""

    title: str
    served: tuple[Served, ...]


def read_runs(out: Path) -> list[Result]:
    """All complete results below a folder, however deep, each spec and seed once."""
    if not out.is_dir():
        raise FileNotFoundError(f"{out} is missing, expected a folder of runs")
    found: dict[str, Result] = {}
    for path in sorted(out.rglob(RESULT)):
        result = _read(path)
        if result.get("status") == "complete":
            found.setdefault(json.dumps(result["spec"], sort_keys=True), result)
    if not found:
        raise ValueError(f"{out} holds no complete run, expected folders with a {RESULT}")
    return list(found.values())


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    needed = ("method", "dataset", "setting", "buffer", "seed", "scores", "spec")
    lacking = [n for n in needed if n not in result] if isinstance(result, dict) else list(needed)
    if lacking:
        raise ValueError(f"{path} lacks {lacking[0]!r}, expected the result of a run")
    return dict(result)


def collections(results: Sequence[Result]) -> list[Collection]:
    """The runs by dataset, setting and buffer; in each, one entry per spec without its seed."""
    places: dict[str, dict[str, dict[int, Result]]] = {}
    for result in sorted(results, key=_order):
        place = places.setdefault(place_title(result), {})
        spec = filled(seedless(result["spec"]))
        group = place.setdefault(json.dumps(spec, sort_keys=True), {})
        group.setdefault(result["seed"], result)
    return [
        Collection(title, tuple(_serve(title, [list(g.values()) for g in groups.values()])))
        for title, groups in places.items()
    ]


def _order(result: Result) -> tuple[str, bool, str, int]:
    """By dataset, then the plain stream before other settings, then the smaller buffer first."""
    setting = str(result["setting"])
    return str(result["dataset"]), setting != "online", setting, int(result["buffer"])


def usual(spec: dict[str, Any], chosen: Sequence[str] = NAMED) -> dict[str, Any]:
    """What a spec would be with nothing chosen but these of its fields.

    Nothing where that cannot be said: the method may come from a package that is not here, and the
    dataset may be gone.
    """
    try:
        return Spec(**{name: spec[name] for name in chosen if name in spec}).to_dict()
    except (TypeError, ValueError):
        return {}


def filled(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec with all its fields; an older run, or an entry of the catalogue, may not name each."""
    return usual(spec) | spec


def place_title(result: Result) -> str:
    """Dataset, setting and buffer in words."""
    name = str(result["dataset"])
    dataset = DATASETS.get(name, Path(name).name or name)
    return f"{dataset}, {result['setting']}, M = {result['buffer']}"


def _serve(column: str, groups: list[list[Result]]) -> list[Served]:
    specs = [seedless(g[0]["spec"]) for g in groups]
    short = [_label(spec, specs, without=SCORING) for spec in specs]
    served = []
    for group, spec, label in zip(groups, specs, short, strict=True):
        row = label if short.count(label) == 1 else _label(spec, specs)
        entry = Entry(row, column, spec, "ibn", {})
        served.append(Served(entry, tuple(sorted(group, key=lambda r: int(r["seed"])))))
    return sorted(served, key=lambda s: _place(str(s.entry.spec["method"])))


def _place(method: str) -> tuple[int, str, int]:
    """Rehearsal methods first, each before its CBA and its Dual-CBA."""
    base, kind = split_method(method)
    order = list(METHODS)
    return order.index(base) if base in order else len(order), base, list(KINDS).index(kind)


def _label(spec: dict[str, Any], specs: list[dict[str, Any]], without: Sequence[str] = ()) -> str:
    """The method, its options, and what else is not usual where runs of it differ."""
    method, plain = str(spec["method"]), usual(spec)
    rivals = [other for other in specs if other["method"] == method]
    varying = [k for k in spec if any(r.get(k, plain.get(k)) != spec[k] for r in rivals)]
    if spec.get("options") and "options" not in varying:
        varying.append("options")
    varying = [k for k in varying if k not in without and not (k in plain and spec[k] == plain[k])]
    named = {k: "" if k == "options" else k.replace("_", " ") + " " for k in varying}
    parts = [name + _short(spec[k]) for k, name in named.items()]
    return ", ".join([method_title(method), *parts])


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text or "none"


def task_classes(result: Result, num_classes: int) -> list[list[int]]:
    """The classes of each task of a run, in the order in which they came.

    >>> task_classes({"spec": {"seed": 0, "tasks": 2, "class_order": "natural"}}, 4)
    [[0, 1], [2, 3]]
    """
    spec = result["spec"]
    order = spec.get("class_order", "natural")
    if order == "shuffled":
        order = generator(spec["seed"], "classes").permutation(num_classes).tolist()
    return split_classes(num_classes, spec["tasks"], None if order == "natural" else order)


def command(spec: dict[str, Any], seeds: Sequence[int]) -> str:
    """The call of `dualcba run` that makes the same runs again.

    >>> command({"method": "er", "dataset": "digits", "lr": 0.1, "options": {}}, [0, 1, 2])
    'dualcba run --method er --dataset digits --lr 0.1 --seeds 3'

    A class-agnostic part that came from each seed's own run elsewhere is a file for each.
    """
    plain = usual(spec, ("method", "dataset", "setting"))
    words = ["dualcba", "run"]
    for name in ("method", "dataset", *(k for k in spec if k not in ("method", "dataset", "seed"))):
        value = spec.get(name)
        if name == "adaptor" and (source := donor(spec)):
            value = f"{source}-sSEED.safetensors"
        if name in ("method", "dataset") or (value is not None and value != plain.get(name)):
            words += _option(name, value)
    runs = list(seeds)
    if runs != list(range(len(runs))):
        words += ["--seed", str(runs[0])]
    contiguous = runs == list(range(runs[0], runs[0] + len(runs)))
    text = shlex.join(words + (["--seeds", str(len(runs))] if contiguous and len(runs) > 1 else []))
    return text if contiguous else f"{text}  # and seeds {', '.join(map(str, runs[1:]))}"


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if name == "options":
        return [w for k, v in value.items() for w in ("--option", f"{k}={json.dumps(v)}")]
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list | tuple):
        flat = all(isinstance(v, int) for v in value)
        return [f"--{flag}", ",".join(map(str, value)) if flat else json.dumps(value)]
    return [f"--{flag}", str(value)]
