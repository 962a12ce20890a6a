"""Functions for a search with `tools.variants`: costs, ranking and leaving out parts of variants.

Scores are those collected by `tools.variants`, on validation data by default. Costs are
floating-point operations of a step relative to ER on the same stream, with only the options of the
stream and the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dualcba.experiments import Spec
from dualcba.options import definitions

Fields = dict[str, Any]
Place = tuple[str, str, str]
"""Variant, stream and base method, as in `tools.variants`."""

Values = Mapping[Place, Mapping[int, float]]
"""A score by place and seed."""

FIRST_BASE = "er"
"""The base method of a variant without its own base."""

TOGETHER: dict[str, tuple[str, ...]] = {
    "head": ("head", "head_scale", "learn_scale"),
    "optimizer": (
        "optimizer", "lr", "momentum", "nesterov", "weight_decay", "beta1", "beta2",
    ),
    "adaptor": ("adaptor", *(n for n, o in definitions(Spec).items() if o.adaptors)),
    "teacher": ("teacher",),
}  # fmt: skip
"""Options that together form one part of a variant; any other option is a part by itself."""


def method_name(base: str, teacher: str, adaptor: str) -> str:
    """Return the name of a method from its parts.

    >>> method_name("er", "mkd", "dual-cba"), method_name("gsa", "", "")
    ('er+mkd-dual-cba', 'gsa')
    """
    return base + (f"+{teacher}" if teacher else "") + (f"-{adaptor}" if adaptor else "")


# ---------------------------------------------------------------------- leave one out


def leave_one_out(name: str, own: Fields) -> dict[str, Fields]:
    """Return a variant, and the variant without each of its parts.

    >>> own = {"base": "gsa", "teacher": "mkd", "lr": 0.001, "head": "cosine", "head_scale": 16}
    >>> list(leave_one_out("best", own))
    ['best', 'without base', 'without teacher', 'without optimizer', 'without head']
    >>> leave_one_out("best", own)["without head"]
    {'base': 'gsa', 'teacher': 'mkd', 'lr': 0.001}
    """
    parts = dict.fromkeys(_part(key) for key in own if key != "method_options")
    if own.get("base", FIRST_BASE) == FIRST_BASE:
        parts.pop("base", None)
    return {name: own} | {f"without {part}": _without(part, own) for part in parts}


def _part(option: str) -> str:
    return next((part for part, keys in TOGETHER.items() if option in keys), option)


def _without(part: str, own: Fields) -> Fields:
    left = {key: value for key, value in own.items() if _part(key) != part}
    given = left.pop("method_options", {})
    of_base = {k: v for k, v in given.items() if k.startswith("base_") or "teacher" not in own}
    if part == "teacher":
        given = {k.removeprefix("base_"): v for k, v in of_base.items()}
    if part == "base":
        left["base"] = FIRST_BASE
        given = {k: v for k, v in given.items() if k not in of_base}
    return left | ({"method_options": given} if given else {})


# ---------------------------------------------------------------------- cost and the best


def relative_costs(
    specs: Mapping[tuple[str, str], tuple[Spec, Spec]], flops: Callable[[Spec], float]
) -> dict[tuple[str, str], float]:
    """Return the cost of each spec relative to its reference."""
    known: dict[str, float] = {}

    def of(spec: Spec) -> float:
        key = repr(spec)
        if key not in known:
            known[key] = flops(spec)
        return known[key]

    return {where: round(of(spec) / of(first), 3) for where, (spec, first) in specs.items()}


def ranked(scores: Iterable[Values]) -> list[tuple[str, float]]:
    """Return variants by their mean score, best first, each under its best statistics.

    Only variants with a value in every column are ranked.


    >>> bn = {("a", "s", ""): {0: 40.0}, ("b", "s", ""): {0: 44.0, 1: 46.0}}
    >>> ibn = {("a", "s", ""): {0: 47.0}, ("b", "s", ""): {0: 41.0, 1: 43.0}}
    >>> ranked([bn, ibn])
    [('a', 47.0), ('b', 45.0)]
    """
    best: dict[str, float] = {}
    for values in scores:
        columns = {where[1:] for where, found in values.items() if found}
        for variant in dict.fromkeys(where[0] for where in values):
            own = [found for where, found in values.items() if where[0] == variant and found]
            means = [fmean(found.values()) for found in own]
            if len(means) == len(columns) and means:
                best[variant] = max(best.get(variant, -1.0), fmean(means))
    return sorted(best.items(), key=lambda pair: -pair[1])


def lines(found: Sequence[tuple[str, float]], costs: Mapping[str, float], score: str) -> str:
    """Return the ranking as text."""
    width = max((len(name) for name, _ in found), default=0)
    rows = [f"{name:{width}}  {value:6.2f}" + _cost(costs.get(name)) for name, value in found]
    return "\n".join([f"the best by {score}:", *rows])


def _cost(value: float | None) -> str:
    return "" if value is None else f"  cost {value:.2f}"
