"""Methods × buffers: one table per stream, protocol and way to score; the values of each seed."""

from __future__ import annotations

from typing import Any

import pytest

from dualcba.experiments import Result, Spec
from dualcba.report.results import collections
from dualcba.report.tables.collections import buffer_table, by_stream, seed_tables


def made(acc: float = 50.0, **given: Any) -> Result:
    spec = Spec(**{"method": "er", **given})
    return Result(spec, spec.seed, {"bn": {"acc": acc}, "ibn": {"acc": acc + 1}})


@pytest.mark.parametrize(
    ("given", "note"),
    [({"protocol": "p10"}, "protocol p10"), ({"real_time": True}, "real time"),
     ({"validation": 0.1}, "10 % validation split")],
)  # fmt: skip
def test_runs_by_another_protocol_or_scored_otherwise_have_a_table_of_their_own(
    given: dict[str, Any], note: str
) -> None:
    both = [made(), made(**given)]
    assert by_stream(collections(both)) == {}  # a single buffer
    found = by_stream(collections([*both, made(buffer=50), made(buffer=50, **given)]))
    assert list(found) == ["Digits, online", f"Digits, online, {note}"]
    for title, groups in found.items():
        table = buffer_table(groups, title, "acc")
        assert [c.group for c in table.columns[1:]] == ["M = 50"] * 2 + ["M = 100"] * 2


def test_the_values_of_each_seed_have_a_table_per_column() -> None:
    runs = [made(40.0 + k + m, buffer=m, seed=k) for m in (10, 20) for k in (0, 1)]
    served = [s for group in collections(runs) for s in group.served]
    tables = seed_tables(served)
    assert [t.title for t in tables] == [
        f"Digits, online, M = {m}: ACC ↑ of each seed" for m in (10, 20)
    ]
    assert tables[1].rows == (("ER", "BN", "60.0", "61.0"), ("ER", "IBN", "61.0", "62.0"))
    assert seed_tables(served[:0]) == []
