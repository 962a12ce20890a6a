"""The gain of an adaptor over its base method on common seeds, and the part due to IBN alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dualcba.evaluation import interval
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.result import frozen
from dualcba.report.comparison import Served
from dualcba.report.names import KINDS, score_info, split_method
from dualcba.report.results import SCORING, common_fields

SAME = common_fields() - {"method", "seed", *SCORING} | {"method_options"}
"""Fields of the spec that must be equal to compare a method with and without an adaptor.

The relative cost of real-time runs is not among them, since an adaptor increases it.
"""


@dataclass(frozen=True)
class Gap:
    """Differences over common seeds: mean, half-width of the 95 % interval, p of the t test."""

    seeds: int
    mean: float | None
    half: float | None
    p: float | None


@dataclass(frozen=True)
class Gain:
    """The gain of a method with an adaptor over its base method, and its parts."""

    base: str
    dual: str
    column: str
    score: str
    whole: Gap
    """With the adaptor and IBN minus the base with BN, as the paper compares them."""

    ibn: Gap
    """The base with IBN minus the base with BN: what IBN gives alone."""

    adaptors: Gap
    """With the adaptor minus the base, both with IBN: what the adaptor gives."""

    bn: Gap
    """With the adaptor minus the base, both with BN."""

    kind: str = "dual-cba"
    """The kind of the adaptor."""

    learnt: bool = True
    """Whether the adaptor has trained parameters; logit adjustment alone has none."""

    @property
    def pair(self) -> str:
        """The two methods, without the statistics in the titles of their rows."""
        names = (self.dual, self.base)
        return " over ".join(n.removesuffix(", BN").removesuffix(", IBN") for n in names)


def gains(served: Sequence[Served]) -> list[Gain]:
    """Return the gain in ACC of each adaptor over its base in the same column, each pair once.

    If two rows have the same runs, the pair is named after the row evaluated with IBN. If two base
    runs differ only in how they were scored, the one with more common seeds is used.
    """
    found: dict[Hashable, tuple[Served, Served]] = {}
    for dual in served:
        for base in _bases(dual, served):
            key = dual.entry.column, _key(base.entry, without=SCORING), _key(dual.entry)
            if key not in found or _better((base, dual), found[key]):
                found[key] = base, dual
    return [_gain(base, dual) for base, dual in found.values()]


def known_gains(served: Sequence[Served]) -> list[Gain]:
    """Return the gains of pairs with at least one common seed."""
    return [g for g in gains([s for s in served if s.results]) if g.adaptors.seeds]


def _bases(dual: Served, served: Sequence[Served]) -> list[Served]:
    """Return the entries of the base method that an entry with an adaptor can be compared with."""
    name, kind = split_method(dual.entry.method)
    if not kind:
        return []
    near = [s for s in served if (s.entry.column, s.entry.method) == (dual.entry.column, name)]
    return [s for s in near if alike(s.entry, dual.entry)]


def _better(pair: tuple[Served, Served], earlier: tuple[Served, Served]) -> bool:
    more = _common(*pair) > _common(*earlier)
    return more or (earlier[1].entry.statistics, pair[1].entry.statistics) == ("bn", "ibn")


def alike(one: Entry, two: Entry) -> bool:
    """Return whether two entries have the same fields apart from the method."""
    return all(one.fields.get(name) == two.fields.get(name) for name in SAME)


def _key(entry: Entry, without: Sequence[str] = ()) -> Hashable:
    fields = {name: v for name, v in entry.fields.items() if name not in without}
    return frozen(fields), entry.donor


def _common(base: Served, dual: Served) -> int:
    return len({r.seed for r in base.results} & {r.seed for r in dual.results})


def _gain(base: Served, dual: Served) -> Gain:
    return Gain(
        base.entry.row,
        dual.entry.row,
        dual.entry.column,
        "acc",
        whole=gap(dual, base, ("ibn", "bn")),
        ibn=ibn_alone(base, dual),
        adaptors=gap(dual, base, ("ibn", "ibn")),
        bn=gap(dual, base, ("bn", "bn")),
        kind=split_method(dual.entry.method)[1],
        learnt=_has_learnt_part(dual.entry),
    )


def _has_learnt_part(entry: Entry) -> bool:
    fields = entry.fields
    return fields.get("specific") != "none" or fields.get("agnostic") is not False


def gap(more: Served, less: Served, statistics: tuple[str, str], score: str = "acc") -> Gap:
    """Return `more` minus `less`, each with its own statistics, over the common seeds."""
    one, other = (_by_seed(s, k, score) for s, k in zip((more, less), statistics, strict=True))
    differences = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    return Gap(len(differences), *paired_t(differences))


def ibn_alone(base: Served, dual: Served) -> Gap:
    """Return the gain of the base from IBN alone, over the seeds that it shares with an adaptor."""
    seeds = {r.seed for r in dual.results}
    shared = replace(base, results=tuple(r for r in base.results if r.seed in seeds))
    return gap(shared, shared, ("ibn", "bn"))


def _by_seed(served: Served, statistics: str, score: str) -> dict[int, float]:
    values = {r.seed: r.value(statistics, score) for r in served.results}
    return {seed: v for seed, v in values.items() if v is not None}


def paired_t(gaps: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return mean, half-width of the 95 % interval and two-sided p value of paired differences.

    Interval and p are None for a single seed; p is also None if all differences are equal.


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
    """Return the number of pairs with all parts, and the means of `whole`, `ibn` and `adaptors`."""
    parts = [(g.whole.mean, g.ibn.mean, g.adaptors.mean) for g in found]
    known = [part for part in parts if None not in part]
    if not known:
        return None
    whole, ibn, adaptors = np.mean(np.array(known, float), axis=0).tolist()
    return len(known), whole, ibn, adaptors


def in_one_line(found: Sequence[Gain]) -> str:
    """Return the mean gain of each kind of adaptor and its two parts as sentences.

    If there are several pairs, adaptors without trained parameters are not averaged.


    >>> gap = [Gap(3, x, 1.0, 0.01) for x in (9.0, 4.0, 5.0, 3.0)]
    >>> in_one_line([Gain("ER", "ER-Dual-CBA", "here", "acc", *gap)])
    'ER-Dual-CBA (IBN) over ER (BN): +9.0 ACC, +4.0 from IBN alone and +5.0 from the adaptor.'
    >>> in_one_line([])
    ''
    """
    averaged = [g for g in found if g.learnt or len(found) == 1]
    by_kind = {gain.kind: [g for g in averaged if g.kind == gain.kind] for gain in averaged}
    return " ".join(line for kind, pairs in by_kind.items() if (line := _sentence(kind, pairs)))


def _sentence(kind: str, found: Sequence[Gain]) -> str:
    mean = means(found)
    if mean is None:
        return ""
    pairs = mean[0]
    whole, ibn, adaptors = (f"{x:+.1f}".replace("-", "−") for x in mean[1:])
    one = len(found) == 1
    who, than = (found[0].dual, found[0].base) if one else (KINDS[kind][1:], "its base")
    over = "" if one else f", mean of {pairs} pairs"
    title = score_info(found[0].score).title
    return (
        f"{who} (IBN) over {than} (BN){over}: {whole} {title}, {ibn} from IBN alone and "
        f"{adaptors} from the adaptor."
    )
