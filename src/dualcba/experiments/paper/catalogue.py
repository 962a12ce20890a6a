"""The paper's tables and figures as data: the runs of each, and the paper's values.

Each is a TOML file in this folder, with these keys:

- `[spec]`: fields of all specs.
- `[columns]`: the label of each column, with further fields.
- `[rows]`: the label of each row, with further fields and the paper's values under `paper`: a list
  per column, with a value per score. `nan` is a value that the paper does not report; an empty list
  is a cell that does not exist.
- `scores`: the scores of the table, in the order of the values.
- `statistics`: the statistics that the values were evaluated with; by default `ibn` for Dual-CBA,
  and `bn` for others.
- `donor`: the dataset of the run from which a frozen class-agnostic part is loaded.
- `counted`: if two rows are readings of the same values of the paper, the columns in which this row
  counts in the agreement; by default all.
- `beside`: the key of the values: `paper`, or `published` for values of other papers.
- `adaptors`: titles and kinds of adaptors; every row is also run with each of them, without values.
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
"""The paper's tables in order, its figures, and our own experiments."""

READINGS = (
    "readings-methods", "readings-semi", "readings-settings", "readings-offline", "readings-text",
    "readings-ibn",
)  # fmt: skip
"""Other readings of the paper, and its text where the defaults differ; not part of `all`."""

FRONTIER = ("frontier", "frontier-shuffled", "las")
"""Later methods of other papers, with and without adaptors; not part of `all`."""

BESIDE = ("paper", "published")
"""Keys of the values for comparison."""

OWN = (*BESIDE, "statistics", "donor", "counted")
"""Keys of a row, a column or `spec` that are not fields of a spec."""


@dataclass(frozen=True)
class Entry:
    """One cell of a table or one curve of a figure: the spec to run and the paper's values."""

    row: str
    column: str
    given: Fields
    """The fields of the spec that differ from their defaults or are set explicitly."""

    statistics: str
    """The statistics that the paper's values were evaluated with: "bn" or "ibn"."""

    paper: Mapping[str, float | None]
    """The paper's values by score; None if the paper does not report one."""

    donor: str | None = None
    """The dataset of the run from which the class-agnostic part is loaded."""

    scale: str = "paper"
    beside: str = "paper"
    """The source of the values: "paper", or "published" for other papers."""

    counted: bool = True
    """Whether it counts in the agreement with the paper, rather than another row."""

    @cached_property
    def spec(self) -> Spec:
        """The spec, constructed on first use and shared by equal entries."""
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
        """The spec of the run from which the class-agnostic part is loaded."""
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
    """The source of the values for comparison, see `Entry`."""


@cache
def experiments() -> dict[str, Experiment]:
    """Return all experiments by name."""
    folder = files("dualcba.experiments") / "paper"
    names = (*NAMES, *READINGS, *FRONTIER)
    texts = {name: (folder / f"{name}.toml").read_text("utf-8") for name in names}
    return {name: make_experiment(name, tomllib.loads(text)) for name, text in texts.items()}


def named(name: str) -> list[Experiment]:
    """Return the experiment with a name, or all in `NAMES` for `all`.

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
    """Return the rows, each followed by rows with each of the adaptors."""
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
