"""Every figure of made-up and of real results: what it shows, not how it looks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dualcba.evaluation import interval
from dualcba.experiments import Result, Spec
from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.result import Anytime
from dualcba.report.comparison import Measure, Served, rows
from dualcba.report.figures.bars import cost, score_bars
from dualcba.report.figures.curves import band, boundaries, of_task, so_far
from dualcba.report.figures.posteriors import confusion
from dualcba.report.figures.registry import FIGURES, draw
from dualcba.report.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Plot,
    apart,
    by_family,
    colours,
    families,
    render,
)
from dualcba.report.results import collections


@pytest.fixture
def served(recorded: list[Result]) -> tuple[Served, ...]:
    return collections(recorded)[0].served


def named(*methods: str) -> list[Served]:
    return [Served(Entry(m, "", {"method": m}, "bn", {}), ()) for m in methods]


@pytest.mark.parametrize("kind", FIGURES)
def test_each_figure_is_drawn_from_runs_that_have_it(kind: str, served: tuple[Served, ...]) -> None:
    plots, remarks = draw(kind, served, "name")
    assert plots
    assert remarks == []
    for plot in plots:
        assert plot.name.startswith("name")
        assert plot.caption.endswith(".")
        assert plot.alt
        assert plot.figure.axes


@pytest.mark.parametrize("kind", FIGURES)
def test_each_figure_is_left_out_with_one_line(kind: str, served: tuple[Served, ...]) -> None:
    bare = [
        replace(s, results=tuple(replace(r, recordings={}, anytime=Anytime()) for r in s.results))
        for s in served
    ]
    plots, remarks = draw(kind, bare, "name")
    assert plots == []
    assert len(remarks) == 1
    assert "left out" in remarks[0]


def test_an_unknown_figure_is_named() -> None:
    with pytest.raises(ValueError, match="unknown figure 'anytimes', did you mean 'anytime'"):
        draw("anytimes", [], "name")


def test_files_are_whole_images_and_repeat(served: tuple[Served, ...]) -> None:
    plot = draw("anytime", served, "name")[0][0]
    svg = render(plot, "svg")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert render(draw("anytime", served, "name")[0][0], "svg") == svg
    image = Image.open(BytesIO(render(plot, "png")))
    assert image.width > 1000
    assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_a_figure_leaves_the_callers_style_alone(
    served: tuple[Served, ...],
) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw("anytime", served, "name")
    assert dict(matplotlib.rcParams) == before


def test_the_band_is_students_over_seeds(served: tuple[Served, ...]) -> None:
    results = served[0].results
    step, mean, half = band(results, "ibn", so_far)
    point = [float(np.mean(r.anytime.accuracy["ibn"][3])) for r in results]
    assert (mean[3], half[3]) == pytest.approx(interval(point))  # type: ignore[index]
    assert step.tolist() == list(results[0].anytime.step)
    assert band(results[:1], "ibn", so_far)[2] is None


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize("kind", ["anytime", "stability", "shift"])
def test_runs_with_a_curve_for_some_statistics_only(
    kind: str, statistics: str, served: tuple[Served, ...]
) -> None:
    """As `--anytime bn` leaves them."""

    def only(r: Result) -> Result:
        other = {s: curve if s == statistics else [] for s, curve in r.anytime.accuracy.items()}
        return replace(r, anytime=replace(r.anytime, accuracy=other))

    half = [replace(s, results=tuple(map(only, s.results))) for s in served]
    plots, remarks = draw(kind, half, "name")
    assert (len(plots), remarks) == (1, [])
    if kind == "anytime":
        assert [ax.get_title(loc="left") for ax in plots[0].figure.axes] == [statistics.upper()]


def test_a_task_has_no_curve_before_it_begins(served: tuple[Served, ...]) -> None:
    result = served[0].results[0]
    step, _ = of_task(4)(result, "bn")
    points = result.anytime
    assert step[0] == points.step[list(points.task).index(4)]
    assert len(boundaries(result)) == 4


@pytest.mark.parametrize("kind", ["anytime", "stability"])
def test_a_curve_of_one_point_can_be_seen(kind: str, served: tuple[Served, ...]) -> None:
    """As `--eval-every` leaves it that is nearly as long as the stream, or as a task."""
    once = Anytime([70], [0], {"bn": [[50.0]], "ibn": [[60.0]]})
    results = tuple(replace(r, anytime=once) for r in served[0].results)
    ((plot,), _) = draw(kind, [replace(served[0], results=results)], "name")
    line = plot.figure.axes[0].lines[0]
    assert (line.get_marker(), line.get_clip_on()) == ("o", False)  # at 100 it is half outside


def vertical(plot: Plot) -> list[float]:
    """The steps of the vertical lines of the first panel."""
    lines = [line.get_xdata() for line in plot.figure.axes[0].lines]
    return [float(x[0]) for x in lines if len(x) == 2 and x[0] == x[1]]


def changed(served: Sequence[Served], *ends: Sequence[int]) -> list[Served]:
    """The same runs with other steps of task ends, in the order of runs."""
    given = iter(ends)
    return [
        replace(s, results=tuple(replace(r, task_ends=next(given)) for r in s.results))
        for s in served
    ]


CURVES = pytest.mark.parametrize("kind", ["anytime", "stability", "shift"])


@CURVES
def test_vertical_lines_are_at_the_ends_of_tasks(kind: str, served: tuple[Served, ...]) -> None:
    """Also between two evaluations: digits have tasks of 28 or 29 batches, scored every 10."""
    ((plot,), _) = draw(kind, served, "name")
    *ends, _ = served[0].results[0].task_ends
    assert vertical(plot) == ends
    assert set(ends).isdisjoint(served[0].results[0].anytime.step)
    assert "Vertical lines mark the ends of tasks." in plot.caption


@CURVES
def test_lines_of_results_of_earlier_versions_are_near_the_ends_of_tasks(
    kind: str, served: tuple[Served, ...]
) -> None:
    ((plot,), _) = draw(kind, changed(served, *[()] * 4), "name")
    points = served[0].results[0].anytime
    first = list(points.task).index(1)
    assert vertical(plot)[0] == sum(points.step[first - 1 : first + 1]) / 2
    assert "halfway between the last evaluation of a task and the first of the next" in plot.caption
    assert "ends of tasks" not in plot.caption


@CURVES
def test_lines_are_of_a_run_that_holds_the_ends_of_its_tasks(
    kind: str, served: tuple[Served, ...]
) -> None:
    ends = [20, 40, 60, 80, 100]
    ((plot,), _) = draw(kind, changed(served, (), (), ends, ()), "name")
    assert vertical(plot) == ends[:-1]
    assert "Vertical lines mark the ends of tasks." in plot.caption
    ((plot,), _) = draw(kind, changed(served, (), ends, [30, *ends[1:]], ends), "name")
    assert vertical(plot) == ends[:-1]
    wanted = "the ends of the tasks of ER with seed 1; in other runs, tasks end at other steps."
    assert wanted in plot.caption


def test_recorded_steps_around_a_transition_are_at_equal_distances(
    served: tuple[Served, ...],
) -> None:
    ((plot,), _) = draw("transitions", served[:1], "name")
    assert set(np.diff(plot.figure.axes[0].lines[0].get_xdata())) == {1.0}
    assert "recorded steps around it, at equal distances" in plot.figure.axes[1].get_xlabel()
    assert "(recorded steps, at equal distances)" in plot.caption


def kept_steps(moment: dict[str, Any], kept: slice) -> dict[str, Any]:
    masses = {who: {m: v[kept] for m, v in moment[who].items()} for who in ("old", "new")}
    return {**moment, "step": moment["step"][kept], **masses}


def test_a_transition_has_the_steps_that_all_seeds_recorded(served: tuple[Served, ...]) -> None:
    """Tasks of long-tailed streams, or in shuffled orders, have another length for each seed."""

    def shorter(result: Result, kept: slice) -> Result:
        cut = [kept_steps(moment, kept) for moment in result.recordings["transitions"]]
        return replace(result, recordings={"transitions": cut})

    one, two = served[0].results
    results = shorter(one, slice(1, 9)), shorter(two, slice(7))
    ((plot,), _) = draw("transitions", [replace(served[0], results=results)], "name")
    line = plot.figure.axes[0].lines[0]
    both = [r.recordings["transitions"][0]["old"]["p_old"][1:7] for r in (one, two)]
    assert line.get_ydata() == pytest.approx(np.mean(both, axis=0))
    assert "from step −2 to 3 (recorded" in plot.caption


def test_boundaries_with_more_steps_than_the_first_do_not_overlap(
    served: tuple[Served, ...],
) -> None:
    result = served[0].results[0]
    first, *rest = result.recordings["transitions"]
    moments = [kept_steps(first, slice(2, 4)), *rest]
    result = replace(result, recordings={"transitions": moments})
    ((plot,), _) = draw("transitions", [replace(served[0], results=(result,))], "name")
    x = [line.get_xdata() for line in plot.figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert x[0][-1] < x[2][0]
    assert "from step −3 to 5 at most (recorded" in plot.caption


def test_alignment_at_other_steps_is_interpolated(served: tuple[Served, ...]) -> None:
    lines = {"without": [0.0, 10.0, 20.0], "with": [1.0] * 3, "bound": [2.0] * 3}
    first, second = (
        replace(r, recordings={"alignment": {"step": steps, **lines}})
        for r, steps in zip(served[0].results, ([10, 20, 30], [0, 20, 40]), strict=True)
    )
    (plot,), _ = draw("alignment", [Served(served[0].entry, (first, second))], "name")
    line = plot.figure.axes[0].lines[1]
    assert line.get_ydata() == pytest.approx([2.5, 10.0, 17.5])


def test_points_that_differ_between_seeds_are_interpolated() -> None:
    curves = (
        Anytime([0, 2, 4], [0, 0, 0], {"bn": [[0.0], [20.0], [40.0]]}),
        Anytime([1, 3], [0, 0], {"bn": [[10.0], [30.0]]}),
    )
    one, two = (Result(Spec(), 0, {}, anytime=curve) for curve in curves)
    step, mean, _ = band([one, two], "bn", so_far)
    assert step.tolist() == [0, 2]
    assert mean.tolist() == [5.0, 20.0]
    late = Result(Spec(), 0, {}, anytime=Anytime([6], [1], {"bn": [[10.0, 50.0]]}))
    step, mean, _ = band([late, one], "bn", of_task(1))  # one ended before task 2 was scored
    assert (step.tolist(), mean.tolist()) == ([], [])


def test_confusion_is_normalised_and_in_order_of_arrival(served: tuple[Served, ...]) -> None:
    table, tasks = confusion(served[0], "bn")
    assert table.sum(1) == pytest.approx(np.ones(10))
    assert tasks[0] == [0, 1]
    counts = np.eye(10, dtype=int) * 5
    counts[0, 9] = 15
    recordings = {"predictions": {"bn": counts.tolist()}}
    result = Result(Spec(class_order=[9, *range(9)]), 0, {}, recordings=recordings)
    one = Served(replace(served[0].entry, statistics="bn"), (result,))
    shares = draw("predictions", [one], "name")[0][0]
    assert shares.figure.axes[0].patches[0].get_height() == 20  # not 25 of 65 predictions
    assert "with classes weighted equally" in shares.caption
    table, _ = confusion(one, "bn")
    assert (table[1, 0], table[1, 1], table[0, 0]) == (0.75, 0.25, 1.0)


def test_alignment_where_a_line_was_not_measured(served: tuple[Served, ...]) -> None:
    first = served[0].results[0]
    lines = {"with": [None, 1.0, 2.0], "without": [None] * 3, "bound": [0.1, 0.1, 0.1]}
    result = replace(first, recordings={"alignment": {"step": [5, 10, 15], **lines}})
    (plot,), _ = draw("alignment", [Served(served[0].entry, (result,))], "name")
    assert [len(line.get_xdata()) for line in plot.figure.axes[0].lines[:2]] == [2, 3]


def test_alignment_has_its_bound_and_its_family_s_colour(served: tuple[Served, ...]) -> None:
    first, entry = served[0].results[0], served[0].entry
    measured, nothing = [1.0, 2.0, 3.0], [None] * 3

    def lines(method: str, **given: Any) -> list[tuple[str, str]]:
        result = replace(first, recordings={"alignment": {"step": [5, 10, 15], **given}})
        one = Served(replace(entry, given={"method": method}), (result,))
        (plot,), _ = draw("alignment", [one], "name")
        assert "bound of Theorem 1" in plot.caption
        return [(x.get_color(), x.get_linestyle()) for x in plot.figure.axes[0].lines[:-1]]

    plain = {"with": nothing, "without": measured, "bound": nothing, "bound_without": measured}
    assert lines("er", **plain) == [(GREY, "-"), (INK, "--")]
    full = dict.fromkeys(("with", "without", "bound", "bound_without"), measured)
    assert lines("er-cba", **full) == [(ORANGE, "-"), (GREY, "-"), (INK, "--")]


def test_labels_of_several_lines_have_room(served: tuple[Served, ...]) -> None:
    def height(row: str) -> float:
        named = [replace(s, entry=replace(s.entry, row=row)) for s in served] * 4
        plot = score_bars(rows(named, ["acc"]), ["er"] * len(named), "acc", "here")
        return float(plot.figure.get_figheight())

    assert height("ER-Dual-CBA, specific individual, freeze after 6") > height("ER")


def test_a_long_path_in_a_label_leaves_room_for_the_bars(served: tuple[Served, ...]) -> None:
    row = f"ER-Dual-CBA, agnostic from {'runs/of/a/donor/' * 6}agnostic.safetensors"
    long = [replace(s, entry=replace(s.entry, row=row)) for s in served]
    plot = score_bars(rows(long, ["acc"]), ["er"] * len(long), "acc", "here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns if the axes have no room
        render(plot, "svg")
    assert plot.figure.axes[0].get_position().width > 0.3


def test_a_family_keeps_its_colour() -> None:
    assert colours(named("er", "er-cba", "er-dual-cba")) == [GREY, ORANGE, BLUE]
    assert colours(named("derpp-dual-cba")) == [BLUE]
    many = colours(named(*["er-dual-cba"] * 4))
    assert many[0] == BLUE
    assert len(set(many)) == 4
    assert len(colours(named(*["er"] * 20))) == 20


@pytest.mark.parametrize("method", ["er", "er-cba", "er-balanced-cba"])
def test_no_two_curves_of_a_figure_have_one_colour(method: str) -> None:
    groups = by_family(named(*[method] * 16), "name")
    assert [(name, len(group)) for name, group in groups] == [
        ("name", 7), ("name-part-2", 7), ("name-part-3", 2)
    ]  # fmt: skip
    assert all(len(set(colours(group))) == len(group) for _, group in groups)


def test_the_name_of_a_row_is_not_mathematics(served: tuple[Served, ...]) -> None:
    row = replace(served[0], entry=replace(served[0].entry, row=r"a $\bad{ b$, C:\x"))
    for kind in FIGURES:
        for plot in draw(kind, [row], "name")[0]:
            assert render(plot, "svg")


def test_methods_without_an_adaptor_beside_them_stand_together() -> None:
    groups = families(named("er", "bic", "er-cba", "lucir"))
    assert [(name, len(group)) for name, group in groups] == [("er", 2), ("others", 2)]


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [5.0, 1.0, 4.9], [0.0, 100.0], []])
def test_labels_keep_apart_and_in_order(values: list[float]) -> None:
    placed = apart(values, 2.0)
    order = np.argsort(values, kind="stable")
    assert all(np.diff(np.array(placed)[order]) >= 2.0 - 1e-9)


def test_bars_end_at_a_hundred_percent_though_an_interval_does_not(
    served: tuple[Served, ...],
) -> None:
    wide = [
        replace(r, cells=tuple(replace(c, ibn=Measure(80.0, 60.0, 2)) for c in r.cells))
        for r in rows(served, ["acc"])
    ]
    plot = score_bars(wide, ["er", "er-dual-cba"], "acc", "here")
    assert plot.figure.axes[0].get_xlim() == (0, 100)


def test_bars_show_the_paper_only_where_it_speaks(served: tuple[Served, ...]) -> None:
    methods = ["er", "er-dual-cba"]
    plain = score_bars(rows(served, ["acc"]), methods, "acc", "here")
    assert "paper" not in plain.caption
    spoken = [replace(s, entry=replace(s.entry, paper={"acc": 70.0})) for s in served]
    marked = score_bars(rows(spoken, ["acc"]), methods, "acc", "here")
    assert "paper" in marked.caption

    def diamonds(plot: Plot) -> int:
        return sum(line.get_marker() == "D" for line in plot.figure.axes[0].lines)

    assert (diamonds(plain), diamonds(marked)) == (0, 2)


def test_cost_that_is_not_known_is_not_drawn(served: tuple[Served, ...]) -> None:
    plots, remarks = cost(served, "cost", "here")
    assert len(plots) == 1
    assert remarks == []
    bare = [replace(s, results=tuple(replace(r, seconds={}) for r in s.results)) for s in served]
    plots, remarks = cost(bare, "cost", "here")
    assert plots == []
    assert "left out" in remarks[0]


def test_a_hundred_classes_in_ten_tasks() -> None:
    """The paper's size: ten panels, three methods, one seed each."""
    steps, points = list(range(20, 201, 20)), 10
    rng = np.random.default_rng(0)
    curve = [rng.uniform(0, 100, t + 1).tolist() for t in range(points)]
    anytime = Anytime(steps, list(range(10)), {"bn": curve, "ibn": curve})
    recordings = {"predictions": {"ibn": rng.integers(0, 9, (100, 100)).tolist()}}
    result = Result(Spec(tasks=10), 0, {}, anytime=anytime, recordings=recordings)
    group = [
        Served(Entry(m, "here", {"method": m}, "ibn", {}), (result,))
        for m in ("er", "er-cba", "er-dual-cba")
    ]
    assert len(draw("stability", group, "s")[0][0].figure.axes) == 10
    assert len(draw("predictions", group, "p")[0]) == 2


def test_a_panel_above_an_empty_place_has_its_own_steps(served: tuple[Served, ...]) -> None:
    (plot,), _ = draw("stability", served[:2], "name")  # five tasks, three to a row
    panels = plot.figure.axes
    assert [ax.axison for ax in panels] == [True] * 5 + [False]
    labelled = [any(t.label1.get_visible() for t in ax.xaxis.get_major_ticks()) for ax in panels]
    assert labelled[:5] == [False, False, True, True, True]


def test_a_run_with_two_statistics_is_one_line(served: tuple[Served, ...]) -> None:
    er, dual = served[:2]
    without = replace(
        dual, entry=replace(dual.entry, row="ER-Dual-CBA without IBN", statistics="bn")
    )
    (plot,), _ = draw("anytime", [er, without, dual], "name")
    assert "ER-Dual-CBA without IBN" not in plot.alt
    assert plot.alt.count("ER-Dual-CBA") == 1
    (plot,), _ = draw("stability", [er, without, dual], "name")
    assert plot.alt.count("ER-Dual-CBA") == 1
