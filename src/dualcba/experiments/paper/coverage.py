"""The runs that tables and figures need, and those that are missing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dualcba.experiments.matching import Index, matches
from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.paper.scale import source_spec
from dualcba.experiments.result import Result, frozen, identity
from dualcba.experiments.run import AGNOSTIC
from dualcba.experiments.spec import Spec
from dualcba.io import atomic_write

Runs = Mapping[Path, Result]
"""Results by their folders."""


@dataclass(frozen=True)
class Wanted:
    """A required run: its spec, and the dataset from which its class-agnostic part is loaded."""

    spec: Spec
    donor: str | None = None
    scale: str = "paper"

    @property
    def source(self) -> Spec | None:
        """The spec of the run with the same seed that trains the class-agnostic part."""
        if self.donor is None:
            return None
        source = source_spec(self.donor, self.scale, divide=self.spec.divide)
        return dataclasses.replace(source, seed=self.spec.seed)

    @property
    def datasets(self) -> set[str]:
        """The required datasets, including that of the donor."""
        return {spec.dataset for spec in (self.spec, self.source) if spec is not None}


@dataclass(frozen=True)
class Coverage:
    """The runs that experiments need, and the missing ones."""

    needed: list[Wanted]
    missing: list[Wanted]

    @property
    def there(self) -> int:
        """The number of runs that are complete."""
        return len(self.needed) - len(self.missing)


def cover(experiments: Iterable[Experiment], seeds: int, runs: Runs) -> Coverage:
    """Return the runs that experiments need for seeds 0, 1, …, and those without a result."""
    every = [e for one in experiments for e in one.entries]
    entries = {(frozen(e.given), e.donor, e.scale): e for e in every}.values()
    index = Index(runs.values())
    served = [{r.seed for r in index.serving(entry)} for entry in entries]
    needed: list[Wanted] = []
    missing: list[Wanted] = []
    for seed in range(seeds):  # seed by seed, so that each row soon has a value
        for entry, there in zip(entries, served, strict=True):
            spec = dataclasses.replace(entry.spec, seed=seed)
            needed.append(Wanted(spec, entry.donor, entry.scale))
            missing += needed[-1:] if seed not in there else []
    owed = [w for w in _sources(missing) if _left_part(w.spec, runs) is None]
    return Coverage(merged([*_sources(needed), *needed]), merged([*owed, *missing]))


def _sources(wanted: Iterable[Wanted]) -> list[Wanted]:
    return [Wanted(source) for w in wanted if (source := w.source)]


def merged(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Merge runs that differ only in what they measure into one that measures all of it.

    >>> every = [Wanted(Spec(method="er", eval_every=n)) for n in (0, 5)]
    >>> [one.spec.eval_every for one in merged(every)]
    [5]
    """
    groups: dict[Hashable, list[Wanted]] = {}
    for one in wanted:
        spec, source = one.spec, one.source
        part = source and (identity(source), source.seed)
        groups.setdefault((identity(spec), spec.seed, spec.agnostic_from, part), []).append(one)
    return [run for group in groups.values() for run in _merged(group)]


def _merged(group: list[Wanted]) -> list[Wanted]:
    """Return one run for each interval of any-time evaluation in a group."""
    intervals = sorted({w.spec.eval_every for w in group if w.spec.eval_every}) or [0]
    record = sorted({name for w in group for name in w.spec.record})
    first = group[0]
    specs = [dataclasses.replace(first.spec, eval_every=n, record=record) for n in intervals]
    return [dataclasses.replace(first, spec=spec) for spec in specs]


# ---------------------------------------------------------------------- parts from another run


def rounds(missing: Sequence[Wanted]) -> list[list[Wanted]]:
    """Return the runs without a donor first, then those that load a part from another run."""
    alone = [one for one in missing if one.donor is None]
    return [part for part in (alone, [one for one in missing if one.donor]) if part]


def ready_spec(one: Wanted, out: Path, runs: Runs) -> Spec:
    """Return the spec of a run, after a copy of the part that it loads to a folder below `out`."""
    source = one.source
    if source is None:
        return one.spec
    part = _left_part(source, runs)
    if part is None:
        what = f"the class-agnostic part of {source.name}"
        raise FileNotFoundError(f"{what} is missing, expected a run on {one.donor} in {out}")
    kind = ("" if one.scale == "paper" else f"{one.scale}-") + "divided-" * source.divide
    path = out / "adaptors" / f"{kind}{one.donor}-s{source.seed}.safetensors"
    with atomic_write(path) as draft:  # other processes may have mapped the file
        shutil.copyfile(part, draft)
    return dataclasses.replace(one.spec, agnostic_from=str(path))


def _left_part(source: Spec, runs: Runs) -> Path | None:
    """Return the file of the class-agnostic part that a run of a spec trained, if there is one."""
    for folder, result in runs.items():
        if result.seed == source.seed and matches(result, source):
            path = folder / AGNOSTIC
            if path.is_file():
                return path
    return None
