"""The contenders by method and name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dualcba.bench.bare import BareDual, BareER
from dualcba.bench.ours import Ours
from dualcba.bench.setup import Make
from dualcba.bench.timing import OURS, Name
from dualcba.bench.usual import UsualDual, UsualER
from dualcba.errors import unknown
from dualcba.methods import parse_method

AGAINST: dict[str, dict[str, Make]] = {
    "bare": {"er": BareER, "er-dual-cba": BareDual},
    "usual": {"er": UsualER, "er-dual-cba": UsualDual},
}
"""Contender → method → the function that builds it."""

SLOW = ("usual",)


def contenders(methods: Sequence[str], against: Sequence[str] = tuple(AGAINST)) -> dict[Name, Make]:
    """Return dualcba's learner for each method, and other contenders that implement the method.

    >>> [" ".join(name) for name in contenders(["er", "clser"], ["bare"])]
    ['er dualcba', 'er bare', 'clser dualcba']
    """
    for other in against:
        if other not in AGAINST:
            raise ValueError(unknown("contender", other, AGAINST))
    made: dict[Name, Make] = {}
    for method in methods:
        parse_method(method)
        made[method, OURS] = partial(Ours, method=method)
        for other in against:
            if method in AGAINST[other]:
                made[method, other] = AGAINST[other][method]
    return made
