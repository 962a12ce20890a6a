"""Any two methods beside each other, on values worked out by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import ttest_rel

from dualcba.evaluation import interval
from dualcba.experiments import Result, Spec, make_specs
from dualcba.report.pairs import chosen, pairs
from dualcba.report.results import collections
from dualcba.report.sections import MOST_PAIRS, Section, report_sections
from dualcba.report.tables.csv import comma_separated, pair_records
from dualcba.report.tables.model import Strong, Table
from dualcba.report.tables.scores import pair_table

P10 = {"dataset": "digits", "protocol": "p10", "seeds": 2}
ER, CBA, DUAL = [20.0, 22.0, 21.0], [24.0, 25.0, 23.5], [30.0, 27.0]


def runs(method: str, acc: list[float], by: float = 1.0, **spec: Any) -> list[Result]:
    """Return results with ACC under BN; under IBN it is higher by `by`."""
    return [
        Result(
            Spec(method=method, seed=k, **spec), k,
            {"bn": {"acc": v, "fm": 50 - v}, "ibn": {"acc": v + by, "fm": 50 - v}},
        )
        for k, v in enumerate(acc)
    ]  # fmt: skip


THREE = [*runs("er", ER), *runs("er-cba", CBA), *runs("er-dual-cba", DUAL, by=3.0)]


def test_each_two_methods_are_compared_on_the_seeds_that_both_have() -> None:
    (group,) = collections(THREE)
    found = {pair.title: pair for pair in pairs(group.served)}
    assert list(found) == [
        "ER-CBA minus ER", "ER-Dual-CBA minus ER", "ER-Dual-CBA minus ER-CBA"
    ]  # fmt: skip
    first = found["ER-CBA minus ER"]
    differences = [x - y for x, y in zip(CBA, ER, strict=True)]
    assert (first.seeds, first.column) == (3, group.title)
    assert (first.bn.mean, first.bn.half) == interval(differences)
    assert first.bn.p == pytest.approx(ttest_rel(CBA, ER).pvalue)
    last = found["ER-Dual-CBA minus ER-CBA"]
    assert (last.seeds, last.bn.mean, last.ibn.mean) == (2, 4.0, 6.0)


def test_methods_without_a_common_seed_are_no_pair() -> None:
    apart = [*runs("er", [20.0]), *runs("er-cba", [1.0, 25.0])[1:]]
    assert [pair for group in collections(apart) for pair in pairs(group.served)] == []


def test_methods_that_were_scored_under_ibn_alone_are_a_pair() -> None:
    both = [replace(r, scores={"ibn": r.scores["ibn"]}) for r in THREE[:6]]
    (pair,) = pairs(collections(both)[0].served)
    assert (pair.seeds, pair.bn.seeds, pair.ibn.seeds) == (3, 0, 3)


def test_some_methods_are_chosen_by_name() -> None:
    other = runs("er-cba", [26.0, 27.0], lr=0.1)
    best = runs("er+mkd", [1.0, 2.0], protocol="p10")
    groups = collections([*THREE, *other, *best])
    some, none = chosen(groups, ["er-cba", "er"])
    assert [s.entry.row for s in some.served] == ["ER", "ER-CBA", "ER-CBA, lr 0.1"]
    assert none.served == ()
    assert [len(group.served) for group in chosen(groups, [])] == [4, 1]
    with pytest.raises(ValueError, match=r"unknown method 'er-cb', did you mean 'er-cba'\? \(kno"):
        chosen(groups, ["er", "er-cb"])


def test_a_recipe_is_chosen_by_its_name() -> None:
    specs = [spec for name in ("best", "er") for spec in make_specs({"method": name, **P10})]
    found = collections(Result(spec, spec.seed, {"bn": {"acc": 9.0}}) for spec in specs)
    assert [len(group.served) for group in chosen(found, ["best", "er"])] == [2]
    assert [len(group.served) for group in chosen(found, ["er+mkd"])] == [1]


def test_pairs_as_a_table_and_as_csv() -> None:
    (group,) = collections(THREE)
    found = pairs(group.served, "fm")
    table = pair_table(found, group.title)
    assert table.title == "Difference in FM ↓, Digits, online, M = 100"
    assert [c.title for c in table.columns] == [
        "methods",
        "seeds",
        "difference",
        "p",
        "difference",
        "p",
    ]
    name, seeds, bn, p, *_ = table.rows[0]
    assert (name, seeds, bn) == ("ER-CBA minus ER", "3", "−3.2 ± \u20071.9")
    assert isinstance(p, Strong)
    lines = list(csv.DictReader(comma_separated(pair_records(found)).splitlines()))
    assert (lines[0]["first"], lines[0]["second"], lines[0]["score"]) == ("ER-CBA", "ER", "fm")
    assert float(lines[0]["ibn_mean"]) == found[0].ibn.mean
    assert lines[2]["seeds"] == "2"


def section(results: list[Result], *compare: str) -> Section | None:
    _, sections = report_sections(results, compare=compare)
    return next((s for s in sections if s.title == "Pairwise comparison of methods"), None)


def test_a_report_has_all_pairs_or_those_of_some_methods() -> None:
    def names(*compare: str) -> list[str]:
        found = section(THREE, *compare)
        assert found is not None
        (table,) = (item for item in found.items if isinstance(item, Table))
        return [row[0] for row in table.rows]

    assert len(names()) == 3
    assert names("er-cba", "er-dual-cba") == ["ER-Dual-CBA minus ER-CBA"]
    assert section(THREE[:3]) is None
    with pytest.raises(ValueError, match="unknown method 'derpp'"):
        section(THREE, "derpp")


def test_a_report_leaves_out_pairs_of_too_many_methods_and_says_so() -> None:
    many = [r for k in range(12) for r in runs("er", ER, lr=0.01 * (k + 1))]
    found = section([*many, *runs("er-cba", CBA)])
    assert found is not None
    assert not any(isinstance(item, Table) for item in found.items)
    (remark,) = found.remarks
    assert remark.startswith("Digits, online, M = 100: left out, since 13 methods have 78 pairs, ")
    assert MOST_PAIRS == 45
    assert "dualcba report --compare" in remark
