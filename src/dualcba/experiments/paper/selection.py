"""Select experiments by dataset, column and row, at a scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from dualcba.errors import expected, one_of, unknown
from dualcba.experiments.paper.catalogue import Entry, Experiment
from dualcba.experiments.paper.scale import CLASSES, SCALES, small_fields

SMALL_NOTE = "Here on handwritten digits: {whose} values do not apply."
WHOSE = {"paper": "the paper's", "published": "published"}
"""The source of the values for comparison, in sentences."""


def choose(
    experiments: Sequence[Experiment],
    dataset: str | None,
    scale: str,
    column: str | None = None,
    rows: Sequence[str] = (),
) -> list[Experiment]:
    """Return experiments restricted to a dataset, a column and rows that contain texts, at a scale.

    Raises a ValueError if no entry is left.
    """
    one_of(SCALES, scale=scale)
    if dataset is not None and dataset not in CLASSES:
        raise ValueError(unknown("dataset", dataset, CLASSES))
    chosen = _chosen(experiments, dataset, column, rows)
    return [scaled(e) if scale == "small" else e for e in chosen]


def choose_own(
    experiment: Experiment,
    dataset: str | None,
    scale: str,
    column: str | None = None,
    rows: Sequence[str] = (),
) -> list[Experiment]:
    """Return the user's own table, restricted to a dataset, a column and rows."""
    if scale != "paper":
        wanted = "'paper': a table of your own is run as it is"
        raise ValueError(expected("scale", scale, wanted))
    return _chosen([experiment], dataset, column, rows)


def _chosen(
    experiments: Sequence[Experiment], dataset: str | None, column: str | None, rows: Sequence[str]
) -> list[Experiment]:
    of_dataset = only(experiments, lambda e: dataset in (None, e.given["dataset"]))
    chosen = only(of_dataset, lambda e: (column or "").lower() in e.column.lower())
    names = ", ".join(e.name for e in experiments)
    if not of_dataset:
        raise ValueError(f"{names} has nothing on {dataset}, expected another --dataset")
    if not chosen:
        known = dict.fromkeys(e.column for one in of_dataset for e in one.entries)
        raise ValueError(unknown(f"column of {names}", column or "", known))
    titles = list(dict.fromkeys(e.row for one in chosen for e in one.entries))
    kept = {title for text in rows or [""] for title in _titles(text, titles, names)}
    return only(chosen, lambda e: e.row in kept)


def _titles(text: str, titles: Sequence[str], names: str) -> list[str]:
    """Return the titles that match a text exactly or up to a comma, or else all that contain it.

    >>> rows = ["ER", "ER, CBA", "ER + MKD"]
    >>> _titles("er", rows, "mine"), _titles("MKD", rows, "mine"), len(_titles("", rows, "mine"))
    (['ER', 'ER, CBA'], ['ER + MKD'], 3)
    """
    low = text.lower()
    exact = [t for t in titles if t.lower() == low or t.lower().startswith(f"{low}, ")]
    found = exact or [t for t in titles if low in t.lower()]
    if not found:
        raise ValueError(unknown(f"row of {names}", text, titles))
    return found


def only(experiments: Iterable[Experiment], keep: Callable[[Entry], bool]) -> list[Experiment]:
    """Filter the entries of experiments; drop experiments without any."""
    parts = [
        dataclasses.replace(one, entries=tuple(filter(keep, one.entries))) for one in experiments
    ]
    return [part for part in parts if part.entries]


def scaled(experiment: Experiment) -> Experiment:
    """Return the experiment on handwritten digits, where a run takes about a second on a CPU.

    The paper's or published values do not apply and are left out.
    """
    entries = tuple(map(_small_entry, experiment.entries))
    whose = SMALL_NOTE.format(whose=WHOSE[experiment.beside])
    note = f"{experiment.note} {whose}".strip()
    return dataclasses.replace(experiment, entries=entries, note=note)


def _small_entry(entry: Entry) -> Entry:
    given = small_fields(entry.given)
    column = f"{entry.column}: digits, {given['tasks']} tasks, M = {given['buffer']}"
    return dataclasses.replace(entry, given=given, column=column, paper={}, scale="small")
