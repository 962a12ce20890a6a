"""Group results: runs that differ only by seed form a row, named by the fields that vary."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from dualcba.data.stream import split_classes
from dualcba.experiments.matching import own_origin
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.provenance import PROVENANCE
from dualcba.experiments.result import NAMED, Digests, Fields, Result, frozen
from dualcba.experiments.spec import Spec
from dualcba.methods import METHODS
from dualcba.options import definitions, overridden, recipe_of
from dualcba.randomness import generator
from dualcba.report.comparison import Served
from dualcba.report.names import KINDS, method_title, split_method

DATASETS = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet",
    "digits": "Digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST",
}  # fmt: skip

SCORING = ("eval_every", "anytime", "record")
"""Fields that affect only how a run is evaluated."""


@dataclass(frozen=True)
class Collection:
    """Runs with the same dataset, setting, buffer, protocol and test data."""

    title: str
    served: tuple[Served, ...]
    stream: str
    """The title without the buffer."""

    @property
    def first(self) -> Result:
        """The first result; all others have the same dataset, setting and buffer."""
        return self.served[0].results[0]


def collections(
    results: Iterable[Result], among: Iterable[Result] | None = None
) -> list[Collection]:
    """Group results by dataset, setting, buffer, protocol and test data.

    In each collection, runs that differ only by seed form one entry. `among` are all results of a
    report if `results` is a part of them: titles then tell datasets with the same name apart.
    """
    data = DataTitles(results := list(results), among)
    ordered = sorted(results, key=lambda result: (*_order(result), data.title(result)))
    grouping = Grouping(ordered)
    places: dict[tuple[str, str], dict[Hashable, Group]] = {}
    compared: dict[str, list[Group]] = {}
    for result in ordered:
        where, note = f"{data.title(result)}, {result.spec.setting}", notes(result)
        title, stream = f"{where}, M = {result.spec.buffer}{note}", where + note
        groups = places.setdefault((title, stream), {})
        if (key := grouping.key(result)) not in groups:
            groups[key] = _group(result, grouping)
            compared.setdefault(stream, []).append(groups[key])
        groups[key].results.setdefault(result.seed, result)
    return [
        Collection(title, tuple(_serve(title, list(groups.values()), compared[stream])), stream)
        for (title, stream), groups in places.items()
    ]


def _order(result: Result) -> tuple[str, bool, str, int, bool, float]:
    """Sort by dataset, setting (`online` first), buffer, protocol (`paper` first) and split."""
    spec, other = result.spec, protocol_note(result) != ""
    place = spec.dataset, spec.setting != "online", spec.setting, spec.buffer
    return *place, other, result.validation


class DataTitles:
    """Titles of datasets, with path or digest where several datasets have the same name."""

    def __init__(self, results: Sequence[Result], among: Iterable[Result] | None = None) -> None:
        every = results if among is None else [*results, *among]
        self._digests = Digests(every)
        pairs = {(dataset_title(result), result.dataset) for result in every}
        titles = [title for title, _ in pairs]
        self._shared = {title for title in titles if titles.count(title) > 1}

    def title(self, result: Result) -> str:
        """Return a unique title for the data of a result."""
        title, digest = dataset_title(result), self._digests.of(result)
        name = result.dataset if title in self._shared else title
        return name if digest is None else f"{name} (digest {digest[:12]})"


def dataset_title(result: Result) -> str:
    """Return the title of a dataset, or the name of its folder or file."""
    dataset = result.dataset
    return DATASETS.get(dataset, Path(dataset).name or dataset)


def notes(result: Result) -> str:
    """Return the suffix of a title on protocol, validation split and real time.

    >>> notes(Result(Spec(real_time=True), 0, {}))
    ', real time'
    """
    real_time = ", real time" * bool(result.fields.get("real_time"))
    return protocol_note(result) + validation_note(result) + real_time


def protocol_note(result: Result) -> str:
    """Return the suffix of a title if the protocol is not the paper's.

    >>> protocol_note(Result(Spec(method="er", protocol="p10"), 0, {}))
    ', protocol p10'
    """
    protocol = result.fields.get("protocol") or "paper"
    return "" if protocol == "paper" else f", protocol {protocol}"


def validation_note(result: Result) -> str:
    """Return the suffix of a title if results were scored on a validation split.

    >>> validation_note(Result(Spec(validation=0.1), 0, {}))
    ', 10 % validation split'
    """
    return f", {100 * result.validation:g} % validation split" if result.validation else ""


def usual(fields: Fields, chosen: Sequence[str] = (*NAMED, "protocol")) -> Fields:
    """Return all fields of a spec with the chosen fields of `fields` and defaults for the others.

    Empty if the defaults are not known, such as for a method of a package that is not installed, or
    a dataset that was removed.
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
    """Tells which results on the same data differ only by seed.

    Runs that loaded the same class-agnostic part belong together. So do runs that loaded one from a
    run with their own seed, if those source runs differ only by seed. If a seed has results with
    several such parts, they are told apart by file name.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self._digests = Digests(results)
        seeds: dict[str, set[int]] = {}
        for result in results:
            if path := result.spec.agnostic_from:
                seeds.setdefault(path, set()).add(result.seed)
        self._shared = {path for path, found in seeds.items() if len(found) > 1}
        scores: dict[tuple[Hashable, int], set[Hashable]] = {}
        for result in results:
            if self.origin(result) is not None:
                place = self._key(result, None), result.seed
                scores.setdefault(place, set()).add(frozen(result.scores))
        self._several = {key for (key, _), found in scores.items() if len(found) > 1}

    def origin(self, result: Result) -> dict[str, Any] | None:
        """Return the source run of the class-agnostic part if each seed loaded its own."""
        found = own_origin(result)
        if found is None or result.spec.agnostic_from in self._shared:
            return None
        names = (*PROVENANCE, "validation", "protocol")
        return {name: found[name] for name in names if name in found}

    def file(self, result: Result) -> str | None:
        """Return the file of the class-agnostic part if its source run is ambiguous, else None.

        SEED stands for the seed.
        """
        if self.origin(result) is None or self._key(result, None) not in self._several:
            return None
        own = rf"(?<![A-Za-z0-9])s{result.seed}(?![A-Za-z0-9])"
        return re.sub(own, "sSEED", str(result.spec.agnostic_from))

    def key(self, result: Result) -> Hashable:
        """Return a key that is equal for results that differ only by seed."""
        return self._key(result, self.file(result))

    def _key(self, result: Result, file: str | None) -> Hashable:
        found = self.origin(result)
        path = {} if found is None else {"agnostic_from": file}
        fields = frozen({**result.fields, "seed": None, **path})
        return fields, frozen(found), self._digests.of(result)

    def fields(self, result: Result) -> dict[str, Any]:
        """Return the fields that are common to all seeds of the result's group."""
        fields = {name: value for name, value in result.fields.items() if name != "seed"}
        found = self.origin(result)
        if found is None:
            return fields
        return fields | {"agnostic_from": self.file(result) or origin_title(found)}


def origin_title(found: Fields) -> str:
    """Describe the run in which a class-agnostic part was trained.

    >>> origin_title({"dataset": "cifar10", "tasks": 5, "buffer": 200})
    'cifar10 in 5 tasks with M = 200'
    """
    tasks, buffer = found.get("tasks"), found.get("buffer")
    number = len(tasks) if isinstance(tasks, list | tuple) else tasks
    size = "" if None in (number, buffer) else f" in {number} tasks with M = {buffer}"
    return f"{found['dataset']}{size}"


# ---------------------------------------------------------------------- the names of groups


@dataclass(frozen=True)
class Group:
    """Results that differ only by seed."""

    full: Fields
    """The fields common to all seeds."""

    brief: Fields
    """The same, with the source of a class-agnostic part shortened to its dataset."""

    results: dict[int, Result] = field(default_factory=dict)
    """By seed."""


def _group(result: Result, grouping: Grouping) -> Group:
    full, found = grouping.fields(result), grouping.origin(result)
    if found is None or grouping.file(result) is not None:
        return Group(full, full)
    return Group(full, full | {"agnostic_from": found["dataset"]})


def _serve(column: str, groups: list[Group], compared: list[Group]) -> list[Served]:
    """Return groups as the entries of a column, named by the fields that vary among `compared`.

    `compared` has the groups of all columns that share this stream. The row of a method without
    options comes before rows that name options.
    """
    brief, full = [other.brief for other in compared], [other.full for other in compared]
    labels = [_label(group.brief, brief, without=SCORING) for group in groups]
    served = []
    for group, label in zip(groups, labels, strict=True):
        row = label if labels.count(label) == 1 else _label(group.full, full)
        entry = Entry(row, column, group.full, "ibn", {})
        results = tuple(group.results[seed] for seed in sorted(group.results))
        served.append(Served(entry, results))
    return sorted(served, key=lambda s: (_place(s.entry.method), _is_variant(s.entry)))


def _is_variant(entry: Entry) -> bool:
    return entry.row != _title(entry.fields)


def _place(method: str) -> tuple[int, str, int]:
    """Sort by base method in the order of `METHODS`, then plain, CBA and Dual-CBA."""
    base, kind = split_method(method)
    order = list(METHODS)
    return order.index(base) if base in order else len(order), base, list(KINDS).index(kind)


def _label(spec: Fields, specs: Sequence[Fields], without: Sequence[str] = ()) -> str:
    """Return the title of a row: its method or recipe, and the fields that tell it apart."""
    recipe = recipe_of(spec)
    own: Fields = {} if recipe is None else recipe[1]
    names = [k for k in _distinguishing(spec, specs) if k not in without]
    values = {k: _beyond_recipe(spec[k], own.get(k)) for k in names if spec[k] != own.get(k)}
    return ", ".join([_title(spec), *(_with_name(k, value) for k, value in values.items())])


def _title(spec: Fields) -> str:
    recipe = recipe_of(spec)
    return method_title(str(spec["method"])) if recipe is None else recipe_title(*recipe)


def _distinguishing(spec: Fields, specs: Sequence[Fields]) -> list[str]:
    """Return the fields that tell a run apart: not at their default, and different in other runs.

    Fields that only some methods have are compared among runs of the same method. Options of the
    method, and fields that override the protocol, are always included.
    """
    method, plain = str(spec["method"]), _defaults_of(spec)
    rivals = [other for other in specs if other["method"] == method]

    def varies(name: str) -> bool:
        others = [other for other in specs if name in other and name in common_fields()]
        found = [other.get(name, plain.get(name)) for other in (*rivals, *others)]
        return any(value != spec[name] for value in found)

    unusual = [k for k in spec if k not in NAMED and not (k in plain and spec[k] == plain[k])]
    varying = [k for k in unusual if varies(k) or (k == "optimizer" and plain and varies("lr"))]
    always = overridden(spec) + (["method_options"] if spec.get("method_options") else [])
    return list(dict.fromkeys([*varying, *always]))


def _beyond_recipe(value: Any, usual: Any) -> Any:
    """Return a value; of a mapping, only the items that the recipe does not set."""
    if not isinstance(value, Mapping) or not isinstance(usual, Mapping):
        return value
    return {k: v for k, v in value.items() if k not in usual}


def _with_name(name: str, value: Any) -> str:
    return (
        _short(value) if name == "method_options" else f"{name.replace('_', ' ')} {_short(value)}"
    )


def recipe_title(name: str, options: Fields) -> str:
    """Return the name of a recipe with its method."""
    return f"{name} ({method_title(str(options['method']))})"


def _defaults_of(spec: Fields) -> Fields:
    """Return the defaults of a run; those that depend on the optimiser are of its own optimiser."""
    plain = usual(spec)
    if spec.get("optimizer") == plain.get("optimizer"):
        return plain
    with_own = usual(spec, (*NAMED, "protocol", "optimizer"))
    return {**with_own, "optimizer": plain["optimizer"]} if plain else {}


@cache
def common_fields() -> frozenset[str]:
    """Return the names of the fields that apply to every method."""
    own = ("method_options", "relative_cost")
    return frozenset(k for k, o in definitions(Spec).items() if not o.adaptors and k not in own)


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
