"""Dual-CBA above its base method, seed by seed, and how much of that IBN gives alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dualcba.evaluation import interval
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.paper.catalogue import score as value
from dualcba.report.comparison import Served
from dualcba.report.groups import SCORING, filled
from dualcba.report.names import score as named
from dualcba.report.names import split_method

SAME = (
    "dataset", "setting", "buffer", "tasks", "class_order", "epochs", "network", "batch_size",
    "lr", "norm", "forward", "ibn_augment", "ibn_average", "seen_only", "boundaries",
    "labelled_batches",
)  # fmt: skip
"""What a method and its Dual-CBA must share to be compared."""


@dataclass(frozen=True)
class Gap:
    """Differences over common seeds: mean, half-width of the 95 % interval, p of the t test."""

    seeds: int
    mean: float | None
    half: float | None
    p: float | None


@dataclass(frozen=True)
class Gain:
    """A Dual-CBA against its base method: as the paper compares them, and the parts of that."""

    base: str
    dual: str
    column: str
    score: str
    whole: Gap
    """Dual-CBA under IBN minus its base under BN."""

    ibn: Gap
    """The base under IBN minus the base under BN: what IBN gives alone."""

    adaptors: Gap
    """Dual-CBA minus its base, both under IBN: what the adaptors give."""

    bn: Gap
    """Dual-CBA minus its base, both under BN."""

    @property
    def pair(self) -> str:
        """Who over whom; a norm in a row's name would contradict the columns, which name both."""
        names = (self.dual, self.base)
        return " over ".join(n.removesuffix(", BN").removesuffix(", IBN") for n in names)


def gains(served: Sequence[Served], score: str = "acc") -> list[Gain]:
    """Every Dual-CBA against its base method of the same column, each pair once.

    Of two rows with the same runs the one that is evaluated under IBN gives its name; of two bases
    that differ only in how they were scored, the one with more seeds in common is taken.
    """
    found: dict[tuple[str, str, str], tuple[Served, Served]] = {}
    for dual in served:
        base_name, kind = split_method(dual.entry.spec.get("method", ""))
        for base in served if kind == "dual-cba" else ():
            same = base.entry.column == dual.entry.column
            same = same and base.entry.spec.get("method") == base_name
            if not same or not alike(base.entry, dual.entry):
                continue
            key = dual.entry.column, _text(base.entry, without=SCORING), _text(dual.entry)
            earlier = found.get(key)
            more = earlier is not None and _common(base, dual) > _common(*earlier)
            named = earlier and (earlier[1].entry.norm, dual.entry.norm) == ("bn", "ibn")
            if earlier is None or more or named:
                found[key] = base, dual
    return [_gain(base, dual, score) for base, dual in found.values()]


def alike(one: Entry, two: Entry) -> bool:
    """Whether two entries are of the same setting, so that their methods can be compared."""
    options = [e.spec.get("options") or {} for e in (one, two)]
    first, second = (filled(e.spec) for e in (one, two))
    same = all(first.get(name) == second.get(name) for name in SAME)
    return same and options[0] == options[1]


def _text(entry: Entry, without: Sequence[str] = ()) -> str:
    spec = {k: v for k, v in filled(entry.spec).items() if k not in without}
    return json.dumps(spec, sort_keys=True)


def _common(base: Served, dual: Served) -> int:
    return len({r["seed"] for r in base.results} & {r["seed"] for r in dual.results})


def _gain(base: Served, dual: Served, score: str) -> Gain:
    return Gain(
        base.entry.row,
        dual.entry.row,
        dual.entry.column,
        score,
        whole=gap(dual, base, ("ibn", "bn"), score),
        ibn=gap(base, base, ("ibn", "bn"), score),
        adaptors=gap(dual, base, ("ibn", "ibn"), score),
        bn=gap(dual, base, ("bn", "bn"), score),
    )


def gap(more: Served, less: Served, norms: tuple[str, str], score: str = "acc") -> Gap:
    """One minus the other, each under its own norm, over the seeds that both have."""
    return _gap(_by_seed(more, norms[0], score), _by_seed(less, norms[1], score))


def _by_seed(served: Served, norm: str, score: str) -> dict[int, float]:
    values = {r["seed"]: value(r, norm, score) for r in served.results}
    return {seed: v for seed, v in values.items() if v is not None}


def _gap(more: dict[int, float], less: dict[int, float]) -> Gap:
    common = sorted(more.keys() & less.keys())
    differences = [more[seed] - less[seed] for seed in common]
    return Gap(len(common), *paired_t(differences))


def paired_t(gaps: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, half-width of the 95 % interval and two-sided p of differences seed by seed.

    One seed has no spread, and so neither interval nor p; nor has p what does not vary at all.

    >>> [round(x, 3) for x in paired_t([1.0, 2.0, 3.0])]
    [2.0, 2.484, 0.074]
    >>> paired_t([1.0]), paired_t([])
    ((1.0, None, None), (None, None, None))
    """
    if not gaps:
        return None, None, None
    mean, half = interval(list(gaps))
    if half is None or np.ptp(gaps) < 1e-9:
        return mean, half, None
    from scipy.stats import ttest_rel

    return mean, half, float(ttest_rel(gaps, np.zeros(len(gaps))).pvalue)


def means(found: Iterable[Gain]) -> tuple[int, float, float, float] | None:
    """How many pairs have all parts; the mean over them of the whole, IBN's part, the adaptors'."""
    parts = [(g.whole.mean, g.ibn.mean, g.adaptors.mean) for g in found]
    known = [part for part in parts if None not in part]
    if not known:
        return None
    whole, ibn, adaptors = np.mean(np.array(known, float), axis=0).tolist()
    return len(known), whole, ibn, adaptors


def in_one_line(found: Sequence[Gain]) -> str:
    """The means over all pairs: what Dual-CBA gains, and how much of it is IBN's.

    >>> gap = [Gap(3, x, 1.0, 0.01) for x in (9.0, 4.0, 5.0, 3.0)]
    >>> in_one_line([Gain("ER", "ER-Dual-CBA", "here", "acc", *gap)])
    'ER-Dual-CBA (IBN) over ER (BN): +9.0 ACC, of it +4.0 by IBN alone, +5.0 by the adaptors.'
    >>> in_one_line([])
    ''
    """
    told = means(found)
    if told is None:
        return ""
    pairs = told[0]
    whole, ibn, adaptors = (f"{x:+.1f}".replace("-", "−") for x in told[1:])
    one = len(found) == 1
    who, than = (found[0].dual, found[0].base) if one else ("Dual-CBA", "its base")
    over = "" if one else f", mean of {pairs} pairs"
    title = named(found[0].score).title
    return (
        f"{who} (IBN) over {than} (BN){over}: {whole} {title}, of it {ibn} by IBN alone, "
        f"{adaptors} by the adaptors."
    )
