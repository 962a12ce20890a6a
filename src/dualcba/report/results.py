"""Results in groups: runs that differ only by seed, named by the fields that tell them apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dualcba.data.stream import split_classes
from dualcba.experiments.matching import own_origin
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.provenance import PROVENANCE
from dualcba.experiments.result import NAMED, Digests, Fields, Result, frozen
from dualcba.experiments.spec import Spec
from dualcba.methods import METHODS
from dualcba.options import overridden
from dualcba.randomness import generator
from dualcba.report.comparison import Served
from dualcba.report.names import KINDS, method_title, split_method

DATASETS = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet",
    "digits": "Digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST",
}  # fmt: skip

SCORING = ("eval_every", "anytime", "record")
"""Fields that say how a run is scored, not what it learns."""


@dataclass(frozen=True)
class Collection:
    """Runs on one dataset, in one setting, with one buffer, by one protocol, on the same data."""

    title: str
    served: tuple[Served, ...]
    stream: str
    """Dataset and setting in words."""

    @property
    def first(self) -> Result:
        """One of its results; all have its dataset, setting and buffer."""
        return self.served[0].results[0]


def collections(
    results: Iterable[Result], among: Iterable[Result] | None = None
) -> list[Collection]:
    """Return the results by dataset, setting, buffer, protocol and the data that score them.

    In each collection there is one entry per group of seeds. `among` are all results of a report,
    if these are a part of them: where several datasets have one name, titles say which one it is.
    """
    data = DataTitles(results := list(results), among)
    ordered = sorted(results, key=lambda result: (*_order(result), data.title(result)))
    grouping = Grouping(ordered)
    places: dict[tuple[str, str], dict[Hashable, dict[int, Result]]] = {}
    for result in ordered:
        stream = f"{data.title(result)}, {result.spec.setting}"
        title = f"{stream}, M = {result.spec.buffer}{notes(result)}"
        groups = places.setdefault((title, stream), {})
        groups.setdefault(grouping.key(result), {}).setdefault(result.seed, result)
    return [
        Collection(title, tuple(_serve(title, list(groups.values()), grouping)), stream)
        for (title, stream), groups in places.items()
    ]


def _order(result: Result) -> tuple[str, bool, str, int, bool, float]:
    """Sort by dataset, `online` before other settings, smaller buffers first, test data first.

    The protocol of the paper is before others.
    """
    spec, other = result.spec, protocol_note(result) != ""
    place = spec.dataset, spec.setting != "online", spec.setting, spec.buffer
    return *place, other, result.validation


class DataTitles:
    """Names the data of results: by their path or digest too, where several have one name."""

    def __init__(self, results: Sequence[Result], among: Iterable[Result] | None = None) -> None:
        every = results if among is None else [*results, *among]
        self._digests = Digests(every)
        pairs = {(_dataset_title(result), result.dataset) for result in every}
        titles = [title for title, _ in pairs]
        self._shared = {title for title in titles if titles.count(title) > 1}

    def title(self, result: Result) -> str:
        """Return a name of the data that no other data have."""
        title, digest = _dataset_title(result), self._digests.of(result)
        name = result.dataset if title in self._shared else title
        return name if digest is None else f"{name} (digest {digest[:12]})"


def _dataset_title(result: Result) -> str:
    dataset = result.dataset
    return DATASETS.get(dataset, Path(dataset).name or dataset)


def notes(result: Result) -> str:
    """Return what a title adds about the protocol and about results not scored as usual.

    >>> notes(Result(Spec(real_time=True), 0, {}))
    ', real time'
    """
    real_time = ", real time" * bool(result.fields.get("real_time"))
    return protocol_note(result) + validation_note(result) + real_time


def protocol_note(result: Result) -> str:
    """Return what the title of a table says if the protocol is not that of the paper.

    >>> protocol_note(Result(Spec(method="er", protocol="p10"), 0, {}))
    ', protocol p10'
    """
    protocol = result.fields.get("protocol") or "paper"
    return "" if protocol == "paper" else f", protocol {protocol}"


def validation_note(result: Result) -> str:
    """Return what the title of a table says if the results are not those of the test data.

    >>> validation_note(Result(Spec(validation=0.1), 0, {}))
    ', 10 % validation split'
    """
    return f", {100 * result.validation:g} % validation split" if result.validation else ""


def usual(fields: Fields, chosen: Sequence[str] = (*NAMED, "protocol")) -> Fields:
    """Return the fields that a spec has if only the chosen ones are given.

    Empty if that cannot be said: the method may come from a package that is not installed, and the
    dataset may be gone.
    """
    try:
        return _defaults(tuple((name, fields[name]) for name in chosen if name in fields))
    except (TypeError, ValueError):
        return {}


@lru_cache(maxsize=1000)
def _defaults(given: tuple[tuple[str, Any], ...]) -> Fields:
    return Spec(**dict(given)).to_dict()


# ---------------------------------------------------------------------- runs that differ by seed


class Grouping:
    """Tells which of some results, on the same data, differ only by seed.

    Runs that loaded the same class-agnostic part differ only by seed; so do runs that each loaded
    one from a run of their own seed, if those runs differ only by seed.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self._digests = Digests(results)
        seeds: dict[str, set[int]] = {}
        for result in results:
            if path := result.spec.agnostic_from:
                seeds.setdefault(path, set()).add(result.seed)
        self._shared = {path for path, found in seeds.items() if len(found) > 1}

    def origin(self, result: Result) -> dict[str, Any] | None:
        """Return the run that a class-agnostic part was trained in, if each seed has its own."""
        found = own_origin(result)
        if found is None or result.spec.agnostic_from in self._shared:
            return None
        names = (*PROVENANCE, "validation", "protocol")
        return {name: found[name] for name in names if name in found}

    def key(self, result: Result) -> Hashable:
        """Return a value that is equal for results that differ only by seed."""
        found = self.origin(result)
        path = {} if found is None else {"agnostic_from": None}
        fields = frozen({**result.fields, "seed": None, **path})
        return fields, frozen(found), self._digests.of(result)

    def fields(self, result: Result) -> dict[str, Any]:
        """Return the fields that all seeds of a group share."""
        fields = {name: value for name, value in result.fields.items() if name != "seed"}
        found = self.origin(result)
        return fields if found is None else fields | {"agnostic_from": origin_title(found)}


def origin_title(found: Fields) -> str:
    """Return a run that a class-agnostic part was trained in, in words.

    >>> origin_title({"dataset": "cifar10", "tasks": 5, "buffer": 200})
    'cifar10 in 5 tasks with M = 200'
    """
    tasks, buffer = found.get("tasks"), found.get("buffer")
    number = len(tasks) if isinstance(tasks, list | tuple) else tasks
    size = "" if None in (number, buffer) else f" in {number} tasks with M = {buffer}"
    return f"{found['dataset']}{size}"


# ---------------------------------------------------------------------- the names of groups


def _serve(column: str, groups: list[dict[int, Result]], grouping: Grouping) -> list[Served]:
    """Return groups of results, by seed, as the entries of a column."""
    first = [next(iter(group.values())) for group in groups]
    full = [grouping.fields(result) for result in first]
    brief = [_brief(spec, grouping.origin(r)) for spec, r in zip(full, first, strict=True)]
    labels = [_label(spec, brief, without=SCORING) for spec in brief]
    served = []
    for group, spec, label in zip(groups, full, labels, strict=True):
        row = label if labels.count(label) == 1 else _label(spec, full)
        entry = Entry(row, column, spec, "ibn", {})
        served.append(Served(entry, tuple(group[seed] for seed in sorted(group))))
    return sorted(served, key=lambda s: _place(s.entry.method))


def _brief(spec: Fields, found: Fields | None) -> Fields:
    """Name only the dataset of the run that a class-agnostic part was trained in."""
    return spec if found is None else {**spec, "agnostic_from": found["dataset"]}


def _place(method: str) -> tuple[int, str, int]:
    """Sort rehearsal methods first, each before its CBA and its Dual-CBA."""
    base, kind = split_method(method)
    order = list(METHODS)
    return order.index(base) if base in order else len(order), base, list(KINDS).index(kind)


def _label(spec: Fields, specs: Sequence[Fields], without: Sequence[str] = ()) -> str:
    """Return the method, its options, and the unusual fields in which runs of it differ.

    Fields in which a run departs from its protocol are named in any case.
    """
    method, plain = str(spec["method"]), usual(spec)
    rivals = [other for other in specs if other["method"] == method]
    varying = [k for k in spec if any(r.get(k, plain.get(k)) != spec[k] for r in rivals)]
    always = overridden(spec) + (["method_options"] if spec.get("method_options") else [])
    varying += [k for k in always if k not in varying]
    varying = [k for k in varying if k not in without and not (k in plain and spec[k] == plain[k])]
    named = {k: "" if k == "method_options" else k.replace("_", " ") + " " for k in varying}
    parts = [name + _short(spec[k]) for k, name in named.items()]
    return ", ".join([method_title(method), *parts])


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{k}={v}" for k, v in value.items()]
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text or "none"


def task_classes(result: Result, num_classes: int) -> list[list[int]]:
    """Return the classes of each task of a run, in the order in which they arrived."""
    fields = result.fields
    order = fields.get("class_order", "natural")
    if order == "shuffled":
        order = generator(result.seed, "classes").permutation(num_classes).tolist()
    return split_classes(num_classes, fields["tasks"], None if order == "natural" else order)
