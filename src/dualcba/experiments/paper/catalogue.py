"""The paper's tables and figures as data: the runs that each needs and the paper's values.

Each is a TOML file in this folder. `[spec]` holds fields of all its specs, `[columns]` fields by
the label of a column, and each of `[rows]` further fields together with the paper's values: one
list per column, in the order of `scores`. A value of `nan` is not reported by the paper; an empty
list is a cell that does not exist. `statistics` says how the values were evaluated: `ibn` for
Dual-CBA and `bn` for the others unless the row says otherwise. `donor` names the dataset whose run
the class-agnostic part is taken from, frozen. Where two rows are readings of the same values of the
paper, `counted` lists the columns in which a row stands for the paper's; by default all.

`beside` is the name of the values: `paper` by default, or `published` for values of other papers,
which rows then give under this key. `adaptors` lists kinds of adaptors by title, with each of which
every row is run too; these rows have no values.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments.paper.scale import source_spec
from dualcba.experiments.result import Fields, identity
from dualcba.experiments.spec import Spec

NAMES = (
    "main", "semi", "blurry", "offline", "per-task", "normalisation", "transfer-intra",
    "transfer-inter", "bilevel", "architecture", "small-buffers", "computation",
    "feature-shift", "anytime", "posterior", "transitions", "predictions", "stability",
    "ablations", "controls", "classifiers", "pretrained", "alignment",
)  # fmt: skip
"""The paper's tables in its order, its figures, and our own experiments."""

READINGS = (
    "readings-methods", "readings-semi", "readings-settings", "readings-offline", "readings-text",
    "readings-ibn",
)  # fmt: skip
"""Other readings of the paper, and its text where the defaults depart; not part of `all`."""

FRONTIER = ("frontier", "frontier-shuffled", "las")
"""Methods that were published since, with and without adaptors; not part of `all` either."""

BESIDE = ("paper", "published")
"""The names of values beside ours."""

OWN = (*BESIDE, "statistics", "donor", "counted")
"""Keys of a row, a column or `spec` that are not fields of a spec."""


@dataclass(frozen=True)
class Entry:
    """One cell of a table or one curve of a figure: the spec to run and the paper's values."""

    row: str
    column: str
    given: Fields
    """The fields of the spec that are not left to their defaults."""

    statistics: str
    """How the paper's values were evaluated: "bn" or "ibn"."""

    paper: Mapping[str, float | None]
    """By score; None if the paper does not report it."""

    donor: str | None = None
    """The dataset of the run that the class-agnostic part is taken from."""

    scale: str = "paper"
    beside: str = "paper"
    """What the paper's values are called: "published" if they are those of other papers."""

    counted: bool = True
    """Whether it is counted in the agreement with the paper; else another row is."""

    @cached_property
    def spec(self) -> Spec:
        """The spec, constructed when it is first needed; equal entries share it."""
        return _spec(json.dumps(self.given, sort_keys=True))

    @cached_property
    def fields(self) -> dict[str, Any]:
        """All fields of the spec; only the given ones if it cannot be constructed here."""
        try:
            return self.spec.to_dict()
        except (TypeError, ValueError):
            return dict(self.given)

    @cached_property
    def identity(self) -> Hashable:
        """The identity of the spec, to compare with that of a result."""
        return identity(self.spec)

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.given.get("method", ""))

    @property
    def source(self) -> Spec | None:
        """The spec of the run that the class-agnostic part is taken from."""
        divide = bool(self.given.get("divide"))
        return None if self.donor is None else source_spec(self.donor, self.scale, divide=divide)


@lru_cache(maxsize=10_000)
def _spec(given: str) -> Spec:
    return Spec(**json.loads(given))


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
    figures: tuple[str, ...]
    scores: tuple[str, ...]
    entries: tuple[Entry, ...]
    note: str
    beside: str = "paper"
    """What the values beside ours are called."""


@cache
def experiments() -> dict[str, Experiment]:
    """Return all experiments by name."""
    folder = files("dualcba.experiments") / "paper"
    names = (*NAMES, *READINGS, *FRONTIER)
    texts = {name: (folder / f"{name}.toml").read_text("utf-8") for name in names}
    return {name: make_experiment(name, tomllib.loads(text)) for name, text in texts.items()}


def named(name: str) -> list[Experiment]:
    """Return the experiment of a name, or those of `NAMES` for `all`.

    >>> named("mian")
    Traceback (most recent call last):
    ...
    ValueError: unknown experiment 'mian', did you mean 'main'? (33 are known, such as main, ...)
    """
    if name == "all":
        return [experiments()[one] for one in NAMES]
    if name not in experiments():
        raise ValueError(unknown("experiment", name, ["all", *experiments()]))
    return [experiments()[name]]


def make_experiment(name: str, content: Mapping[str, Any]) -> Experiment:
    """Return an experiment from the content of its file."""
    scores, beside = tuple(content["scores"]), content.get("beside", "paper")
    every, columns = content.get("spec", {}), content["columns"]
    entries: list[Entry] = []
    for row, given in _rows(content, beside).items():
        values = given.get(beside, [[math.nan] * len(scores)] * len(columns))
        entries += [
            _entry(row, column, every | part | given, _values(scores, numbers), beside)
            for (column, part), numbers in zip(columns.items(), values, strict=True)
            if numbers
        ]
    protocols = [entry.given.get("protocol", "paper") for entry in entries]
    if len(set(protocols)) > 1:
        named = zip(entries, protocols, strict=True)
        entries = [replace(entry, row=f"{entry.row}, {protocol}") for entry, protocol in named]
    figure = content.get("figure", [])
    figures = (figure,) if isinstance(figure, str) else tuple(figure)
    kind = "figure" if figures else "table"
    note = " ".join(content["note"].split())
    return Experiment(name, content["title"], kind, figures, scores, tuple(entries), note, beside)


def _rows(content: Mapping[str, Any], beside: str) -> dict[str, Any]:
    """Return the rows, each followed by its method with each of the adaptors, without values."""
    rows, every = {}, content.get("spec", {})
    for row, given in content["rows"].items():
        rows[row] = given
        cells = given.get(beside)
        unknown_values = {} if cells is None else {beside: [[math.nan] * len(v) for v in cells]}
        for title, kind in content.get("adaptors", {}).items():
            method = f"{given.get('method', every.get('method'))}-{kind}"
            rows[f"{row}, {title}"] = {**given, "method": method, **unknown_values}
    return rows


def _entry(
    row: str, column: str, given: dict[str, Any], values: dict[str, float | None], beside: str
) -> Entry:
    fields = {name: value for name, value in given.items() if name not in OWN}
    usual = "ibn" if str(fields["method"]).endswith("-dual-cba") else "bn"
    statistics = given.get("statistics", usual)
    counted = column in given.get("counted", [column])
    donor = given.get("donor")
    return Entry(row, column, fields, statistics, values, donor, beside=beside, counted=counted)


def _values(scores: tuple[str, ...], values: list[float]) -> dict[str, float | None]:
    pairs = dict(zip(scores, values, strict=True))
    if all(map(math.isnan, values)):
        return {}
    return {score: None if math.isnan(value) else value for score, value in pairs.items()}
