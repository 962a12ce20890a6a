"""Find results that match a spec, so that a run is not repeated."""

from __future__ import annotations

from collections.abc import Iterable

from dualcba.data.dataset import DataOrigin
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.provenance import PROVENANCE
from dualcba.experiments.result import AnySpec, Fields, Result, identity
from dualcba.experiments.spec import Spec


def matches(result: Result, spec: AnySpec, source: Spec | None = None) -> bool:
    """Return whether a complete result matches a spec, apart from the seed.

    All fields must be equal, but the result may have more than the spec requires: any-time scores
    in addition to those at task ends, and further recordings. With `source`, the class-agnostic
    part must come from a run of that spec with the seed of the result.
    """
    if (result.method, result.dataset) != (spec.method, spec.dataset):
        return False
    return result.identity == identity(spec) and _serves(result, spec, source)


def _serves(result: Result, spec: AnySpec, source: Spec | None) -> bool:
    """Return whether a result matches a spec of the same identity."""
    got, wanted = result.fields, spec.to_dict()
    every, record = wanted.get("eval_every"), wanted.get("record")
    if not result.complete or (every != 0 and got.get("eval_every") != every):
        return False
    if not set(record or ()) <= set(got.get("record") or ()):
        return False
    if source is None:
        return result.spec.agnostic_from == spec.agnostic_from
    return came_from(result, source)


def came_from(result: Result, source: Spec) -> bool:
    """Return whether a run loaded its class-agnostic part from a run of `source` with its seed."""
    origin = own_origin(result)
    if origin is None or origin.get("validation", 0.0) != source.validation:
        return False
    if origin.get("protocol", "paper") != source.protocol:
        return False
    return all(origin[name] == getattr(source, name) for name in PROVENANCE if name in origin)


def own_origin(result: Result) -> Fields | None:
    """Return the source run of a loaded class-agnostic part if it had the same seed, else None."""
    origin = result.agnostic_provenance or {}
    if result.spec.agnostic_from in (None, "pretrained") or "dataset" not in origin:
        return None
    return origin if origin.get("seed") == result.seed else None


class Index:
    """Results by method and dataset, for fast lookup without constructing all specs."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._data: dict[str, DataOrigin] = {}
        self._results: dict[tuple[str, str], list[Result]] = {}
        for result in results:
            self._results.setdefault((result.method, result.dataset), []).append(result)

    def serving(self, entry: Entry) -> tuple[Result, ...]:
        """Return the results that match an entry, sorted by seed, one per seed.

        Raises a ValueError if results of this or an earlier entry are on different data.
        """
        found: dict[int, Result] = {}
        for result in self._near(entry):
            if result.identity == entry.identity and _serves(result, entry.spec, entry.source):
                self._check_data(result)
                found.setdefault(result.seed, result)
        return tuple(found[seed] for seed in sorted(found))

    def _check_data(self, result: Result) -> None:
        """Raise a ValueError if matching results have different data for the same dataset."""
        if result.data is None:
            return
        first = self._data.setdefault(result.dataset, result.data)
        if result.data.digest != first.digest:
            found = f"{first}, and {result.data}"
            raise ValueError(
                f"a table has results on two datasets {result.dataset}: {found}, expected one; "
                "report their folders separately"
            )

    def _near(self, entry: Entry) -> list[Result]:
        """Return the candidates: results with equal fields that are cheap to compare."""
        given = entry.given
        near = self._results.get((entry.method, str(given.get("dataset"))), [])
        known = {n: given[n] for n in ("setting", "buffer") if given.get(n) is not None}
        return [r for r in near if all(r.fields.get(n) == v for n, v in known.items())]
