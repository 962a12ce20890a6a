"""Markdown tables of methods with and without bias adaptors."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.options import CBA
from dualcba.report.comparison import Served, rows
from dualcba.report.gains import Gap, alike, gap
from dualcba.report.names import KINDS, MISSING, split_method
from dualcba.report.tables.model import number, p_value
from dualcba.report.tables.model import plain_spread as spread
from tools.collected import Collected, Fields, Sourced, named
from tools.page_parts import ONE_SEED, markdown, signed, with_sources

TITLES = {kind: KINDS[kind].removeprefix("-") for kind in CBA}


def adaptors(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return the accuracy of each method alone and with each adaptor, and the published values."""
    served = found.serve(experiment, column, changed)
    if not served:
        return ""
    beside = named(experiment).beside
    heads = ["", beside, "alone, BN", "alone, IBN", *(f"{t}, IBN" for t in TITLES.values())]
    body = []
    for base in bases(served):
        cells = [accuracy(base, "bn"), accuracy(base, "ibn")]
        cells += [accuracy(with_adaptor(served, base, kind), "ibn") for kind in TITLES]
        body.append([base.entry.row, number(base.entry.paper.get("acc"), 1), *cells])
    return with_sources(markdown(heads, body), served)


def added(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return the gain of each adaptor with each method, on common seeds."""
    served = found.serve(experiment, column, changed)
    body = []
    for base in bases(served):
        for kind, title in TITLES.items():
            if (other := with_adaptor(served, base, kind)) is not None:
                gaps = [
                    gap(other, base, ("ibn", "ibn")),
                    gap(other, base, ("bn", "bn")),
                    gap(other, base, ("ibn", "ibn"), "fm"),
                ]
                body.append([base.entry.row, title, str(gaps[0].seeds), *map(tested, gaps)])
    heads = ["", "adaptor", "seeds", "ACC, IBN", "ACC, BN", "FM, IBN"]
    return markdown(heads, body) if body else ""


def bases(served: Sequence[Sourced]) -> list[Sourced]:
    """Return the rows of methods without an adaptor."""
    return [s for s in served if split_method(s.entry.method)[1] not in CBA]


def with_adaptor(served: Sequence[Sourced], base: Served, kind: str) -> Sourced | None:
    """Return the row of the same method with an adaptor, or None if it was not run."""
    name = f"{base.entry.method}-{kind}"
    same = (s for s in served if s.entry.method == name and alike(s.entry, base.entry))
    return next(same, None)


def accuracy(one: Served | None, statistics: str) -> str:
    """Return the accuracy of a row with its interval, or a dash if it was not run."""
    if one is None:
        return MISSING
    (cell,) = rows([one], ["acc"])[0].cells
    return spread(cell.bn if statistics == "bn" else cell.ibn)


def tested(one: Gap) -> str:
    """Return a difference with the p value of a paired t test.

    >>> tested(Gap(3, 1.26, 0.4, 0.012)), tested(Gap(1, -1.26, None, None))
    ('+1.3 ± 0.4 (p 0.012)', '−1.3')
    """
    test = "" if one.p is None else f" (p {p_value(one.p)})"
    return signed(one).removesuffix(ONE_SEED) + test
