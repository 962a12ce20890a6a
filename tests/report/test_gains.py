"""Dual-CBA above its base method, seed by seed, on values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import ttest_1samp, ttest_rel

from dualcba.evaluation import interval
from dualcba.experiments import Result, Spec
from dualcba.experiments.paper.catalogue import Entry
from dualcba.report.comparison import Served
from dualcba.report.gains import (
    SAME,
    Gain,
    Gap,
    alike,
    gains,
    in_one_line,
    known_gains,
    means,
    paired_t,
)
from dualcba.report.results import SCORING


def served(method: str, bn: list[float | None], by: float = 0.0, **spec: Any) -> Served:
    """Return results with ACC under BN; under IBN it is higher by `by`."""
    results = tuple(
        Result(
            Spec(method=method, seed=k), k,
            {"bn": {"acc": v}, "ibn": {"acc": None if v is None else v + by}},
        )
        for k, v in enumerate(bn)
    )  # fmt: skip
    return Served(Entry(method, "here", {"method": method, **spec}, "bn", {}), results)


def test_paired_t_is_scipys() -> None:
    a, b = [30.1, 31.0, 29.5], [24.0, 24.9, 24.1]
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    mean, half, p = paired_t(gaps)
    assert p == pytest.approx(ttest_rel(a, b).pvalue)
    assert (mean, half) == interval(gaps)


def test_the_whole_is_what_ibn_gives_and_what_the_adaptors_give() -> None:
    base, dual = served("er", [20.0, 22.0, 21.0], by=3), served("er-dual-cba", [25.0, 26.0], by=1)
    (gain,) = gains([base, dual, served("derpp", [1.0, 2.0])])
    assert (gain.base, gain.dual, gain.adaptors.seeds) == ("er", "er-dual-cba", 2)
    assert gain.bn.mean == pytest.approx(4.5)
    assert gain.whole.mean == pytest.approx(5.5)
    assert gain.ibn.mean == pytest.approx(3.0)
    assert gain.adaptors.mean == pytest.approx(2.5)
    assert gain.adaptors.p == pytest.approx(ttest_rel([26.0, 27.0], [23.0, 25.0]).pvalue)
    assert gain.whole.p == pytest.approx(ttest_rel([26.0, 27.0], [20.0, 22.0]).pvalue)


def test_what_ibn_gives_is_measured_on_the_common_seeds_as_the_whole_is() -> None:
    base = [
        Result(Spec(method="er", seed=k), k, {"bn": {"acc": 20.0}, "ibn": {"acc": 20.0 + k}})
        for k in range(4)
    ]
    dual = served("er-dual-cba", [25.0, 26.0], by=1)
    (gain,) = gains([replace(served("er", []), results=tuple(base)), dual])
    assert gain.ibn.seeds == gain.whole.seeds == 2
    assert gain.ibn.mean == pytest.approx(0.5)
    assert gain.whole.mean == pytest.approx((gain.ibn.mean or 0) + (gain.adaptors.mean or 0))


def test_logit_adjustment_alone_is_not_averaged_as_dual_cba() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 27.0])
    prior = served("er-dual-cba", [90.0, 92.0], specific="none", agnostic=False, prior=True)
    found = gains([base, dual, prior])
    assert [g.learnt for g in found] == [True, False]
    assert "+5.0 ACC" in in_one_line(found)
    assert "+70.0 ACC" in in_one_line(found[1:])


def test_one_seed_has_neither_interval_nor_p() -> None:
    (gain,) = gains([served("er", [20.0]), served("er-dual-cba", [25.0])])
    assert (gain.bn.mean, gain.bn.half, gain.bn.p) == (5.0, None, None)


def test_no_common_seed_has_no_difference() -> None:
    both = [served("er", [None]), served("er-dual-cba", [25.0])]
    (gain,) = gains(both)
    assert (gain.bn.seeds, gain.bn.mean, gain.bn.p) == (0, None, None)
    assert in_one_line([gain]) == ""
    assert known_gains(both) == []


def test_a_difference_is_of_runs_of_one_seed() -> None:
    base, dual = served("er", [20.0, None, 30.0]), served("er-dual-cba", [None, 25.0, 33.0])
    (gain,) = gains([base, dual])
    assert (gain.bn.seeds, gain.bn.mean) == (1, 3.0)


def test_differences_that_do_not_vary_have_no_p() -> None:
    assert paired_t([2.0, 2.0, 2.0]) == (2.0, 0.0, None)
    assert paired_t([0.3, 0.1 + 0.2, 0.3])[2] is None  # nor those of rounding
    almost = [1.0, 1.002, 1.003]
    assert paired_t(almost)[2] == pytest.approx(ttest_1samp(almost, 0).pvalue)


def test_a_pair_that_lacks_a_part_is_not_in_the_means() -> None:
    there, none = Gap(1, 5.0, None, None), Gap(0, None, None, None)
    whole = Gain("ER", "ER-Dual-CBA", "here", "acc", there, there, there, there)
    assert means([whole, replace(whole, ibn=none), replace(whole, adaptors=none)]) == (1, 5, 5, 5)


def test_runs_that_differ_in_more_than_the_adaptor_are_not_paired() -> None:
    dual = served("er-dual-cba", [25.0, 26.0], buffer=200)
    assert gains([served("er", [20.0, 21.0], buffer=100), dual]) == []
    elsewhere = replace(dual, entry=replace(dual.entry, column="there"))
    assert gains([served("er", [20.0, 21.0], buffer=200), elsewhere]) == []


def test_nor_are_those_of_a_method_with_other_options() -> None:
    dual = served("derpp-dual-cba", [25.0, 26.0], method_options={"alpha": 0.1})
    assert gains([served("derpp", [20.0, 21.0]), dual]) == []
    assert len(gains([served("derpp", [20.0, 21.0], method_options={"alpha": 0.1}), dual])) == 1


@pytest.mark.parametrize(
    ("field", "usual", "other"),
    [("labelled_batches", "mixed", "cycled"), ("ibn_average", "cumulative", "ema"),
     ("ibn_augment", True, False)],
)  # fmt: skip
def test_nor_are_runs_under_another_ibn_or_with_labels_served_otherwise(
    field: str, usual: Any, other: Any
) -> None:
    semi = {"setting": "semi-0.2"} if field == "labelled_batches" else {}
    dual = served("er-dual-cba", [25.0, 26.0], **{field: usual}, **semi)
    assert gains([served("er", [20.0, 21.0], **{field: other}, **semi), dual]) == []
    assert len(gains([served("er", [20.0, 21.0], **semi), dual])) == 1  # the default


def test_every_field_but_the_adaptors_is_compared() -> None:
    """A new option is compared unless it is one of the adaptor or of how a run is scored."""
    assert {"tracking", "on_outlier", "validation", "method_options", "lr"} <= SAME
    assert not SAME & {"method", "seed", *SCORING, "width", "relative_cost"}


@pytest.mark.parametrize("given", [{"tracking": "memory"}, {"validation": 0.1}])
def test_runs_with_other_running_statistics_or_scored_on_other_data_are_not_paired(
    given: dict[str, Any],
) -> None:
    dual = served("er-dual-cba", [25.0, 26.0], **given)
    assert gains([served("er", [20.0, 21.0]), dual]) == []
    assert len(gains([served("er", [20.0, 21.0], **given), dual])) == 1


def test_in_real_time_the_cost_of_an_adaptor_is_its_own() -> None:
    base = served("er", [20.0, 21.0], real_time=True, relative_cost=1.0)
    dual = served("er-dual-cba", [25.0, 26.0], real_time=True, relative_cost=1.4)
    assert len(gains([base, dual])) == 1


def test_a_spec_that_stands_twice_is_tested_once() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 26.0])
    again = replace(base, entry=replace(base.entry, row="ER + IBN", statistics="ibn"))
    assert len(gains([base, again, dual])) == 1


def test_of_bases_that_differ_in_their_scoring_the_one_with_more_common_seeds_is_taken() -> None:
    dual = served("er-dual-cba", [25.0, 26.0, 27.0])
    short = served("er", [1.0], eval_every=0)
    full = served("er", [20.0, 22.0, 21.0], eval_every=5, boundaries="given")  # a field, as usual
    for bases in ([short, full], [full, short]):
        (gain,) = gains([*bases, dual])
        assert (gain.bn.seeds, gain.bn.mean) == (3, pytest.approx(5.0))


def test_a_pair_is_named_without_the_statistics_of_its_rows() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 26.0])
    base = replace(base, entry=replace(base.entry, row="ER, IBN"))
    dual = replace(dual, entry=replace(dual.entry, row="ER-Dual-CBA, BN"))
    assert [g.pair for g in gains([base, dual])] == ["ER-Dual-CBA over ER"]


def test_the_row_under_ibn_gives_a_pair_its_name() -> None:
    base, dual = served("er", [20.0, 22.0]), served("er-dual-cba", [25.0, 26.0])
    without = replace(dual, entry=replace(dual.entry, row="without IBN"))
    ibn = replace(dual, entry=replace(dual.entry, row="with", statistics="ibn"))
    assert [g.dual for g in gains([base, without, ibn])] == ["with"]
    assert [g.dual for g in gains([base, ibn, without])] == ["with"]


def test_in_one_line_the_means_over_pairs() -> None:
    er = gains([served("er", [20.0, 22.0], by=3), served("er-dual-cba", [25.0, 26.0], by=1)])
    der = gains([served("derpp", [30.0, 31.0]), served("derpp-dual-cba", [29.0, 29.5])])
    both: list[Gain] = [*er, *der]
    assert in_one_line(both) == (
        "Dual-CBA (IBN) over its base (BN), mean of 2 pairs: +2.1 ACC, +1.5 from IBN alone and "
        "+0.6 from the adaptor."
    )


def test_each_kind_of_adaptor_has_a_sentence_of_its_own() -> None:
    kinds = [served(f"er-{kind}", [25.0, 26.0]) for kind in ("cba", "dual-cba", "balanced-cba")]
    found = gains([served("er", [20.0, 22.0]), *kinds])
    assert [gain.kind for gain in found] == ["cba", "dual-cba", "balanced-cba"]
    line = in_one_line(found)
    assert line.count("over er (BN)") == 3
    two = [*found, *found]
    assert "Balanced-CBA (IBN) over its base (BN), mean of 2 pairs" in in_one_line(two)


@pytest.mark.parametrize("other", [{"head": "cosine"}, {"readout": "ncm"}])
def test_methods_with_different_heads_or_readouts_are_not_compared(other: dict[str, str]) -> None:
    given = {"dataset": "digits", "method": "er"}
    base = Entry("ER", "here", given, "bn", {})
    dual = Entry("dual", "here", given | {"method": "er-dual-cba"}, "ibn", {})
    assert alike(base, dual)
    changed = Entry("dual", "here", {**dual.given, **other}, "ibn", {})
    assert not alike(base, changed)
