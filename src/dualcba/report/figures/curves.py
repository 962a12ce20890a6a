"""Curves over the stream: any-time accuracy, the stability gap, a task under two class orders."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from dualcba.evaluation import interval
from dualcba.experiments.result import Result, frozen
from dualcba.report.comparison import Served
from dualcba.report.figures.style import (
    FAINT,
    MUTED,
    Axes,
    Drawn,
    Figure,
    Plot,
    by_family,
    colours,
    few_ticks,
    grid,
    key,
    label_ends,
    new_figure,
    styled,
)
from dualcba.report.names import STATISTICS, seeds

Floats = NDArray[np.float64]
Curve = Callable[[Result, str], tuple[Floats, Floats]]
LABEL = 15
"""The longest name, in characters, to write at the end of a curve; longer ones go into a legend."""

HALFWAY = (
    "Vertical lines lie halfway between the last evaluation of a task and the first of the next."
)
"""Used for results of earlier versions, which do not store the ends of tasks."""

PANELS = 12
"""The largest number of tasks to show; of more, evenly spaced ones are shown."""


def with_curve(served: Sequence[Served], statistics: str) -> list[Served]:
    """Return the entries of which every result has any-time accuracy."""
    return [
        s
        for s in served
        if s.results and all(r.anytime.accuracy.get(statistics) for r in s.results)
    ]


def with_curves(served: Sequence[Served]) -> list[Served]:
    """Return the entries that have a curve under BN or IBN."""
    return [s for s in served if any(with_curve([s], statistics) for statistics in STATISTICS)]


def so_far(result: Result, statistics: str) -> tuple[Floats, Floats]:
    """Return steps, and the mean accuracy over the tasks seen so far."""
    points = result.anytime
    mean = [np.mean(row) for row in points.accuracy[statistics]]
    return np.array(points.step, float), np.array(mean)


def of_task(task: int) -> Curve:
    """Return a function that gives the steps and accuracy of a task from its start on.

    Tasks count from 0.
    """

    def curve(result: Result, statistics: str) -> tuple[Floats, Floats]:
        points = result.anytime
        kept = [
            (s, row[task])
            for s, row in zip(points.step, points.accuracy[statistics], strict=True)
            if len(row) > task
        ]
        return np.array([s for s, _ in kept], float), np.array([v for _, v in kept], float)

    return curve


def band(
    results: Sequence[Result], statistics: str, curve: Curve
) -> tuple[Floats, Floats, Floats | None]:
    """Return steps, mean and half-width of the 95 % interval over seeds.

    If seeds were evaluated at different steps, their curves are interpolated at those of the first.
    """
    step, rows = at_common_steps([curve(r, statistics) for r in results])
    if len(rows) < 2:
        return step, rows[0], None
    halves = [interval(list(column))[1] or 0.0 for column in rows.T]
    return step, rows.mean(0), np.array(halves)


def at_common_steps(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Interpolate curves at the steps of the first one, up to the end of the shortest.

    There are no steps if any curve is empty.
    """
    if not all(len(steps) for steps, _ in curves):
        return np.empty(0), np.empty((len(curves), 0))
    steps = curves[0][0]
    steps = steps[steps <= min(own[-1] for own, _ in curves)]
    return steps, np.array([np.interp(steps, own, values) for own, values in curves])


def boundaries(result: Result) -> list[float]:
    """Return the steps at which all tasks but the last one end.

    If the result does not store them, they are halfway between the last evaluation of a task and
    the first of the next.
    """
    if result.task_ends:
        return [float(step) for step in result.task_ends[:-1]]
    steps, task = result.anytime.step, result.anytime.task
    return [(steps[k] + steps[k + 1]) / 2 for k in range(len(task) - 1) if task[k + 1] > task[k]]


def with_boundaries(served: Sequence[Served]) -> tuple[Served, Result]:
    """Return the run whose task boundaries are drawn: the first one that stores them."""
    every = [(s, result) for s in served for result in s.results]
    return next((pair for pair in every if pair[1].task_ends), every[0])


def lines(served: Sequence[Served]) -> str:
    """Return a sentence that explains the vertical lines of a figure."""
    shown, result = with_boundaries(served)
    if not result.task_ends:
        return HALFWAY
    ends = {tuple(r.task_ends) for s in served for r in s.results if r.task_ends}
    if len(ends) == 1:
        return "Vertical lines mark the ends of tasks."
    whose = f"{shown.entry.row} with seed {result.seed}"
    return (
        f"Vertical lines mark the ends of the tasks of {whose}; in other runs, tasks end at other "
        "steps."
    )


def draw(
    ax: Axes,
    served: Sequence[Served],
    statistics: str | None,
    curve: Curve,
    *,
    palette: Sequence[str],
    width: float = 2.0,
) -> list[tuple[float, str, str]]:
    """Draw mean and band of each entry that has a curve.

    Without `statistics`, each entry is drawn with its own, or with any that it has. Returns the
    last value, the name and the colour of each line.
    """
    ends = []
    for s, colour in zip(served, palette, strict=True):
        shown = [statistics] if statistics else [s.entry.statistics, *STATISTICS]
        own = next((one for one in shown if with_curve([s], one)), None)
        step, mean, half = band(s.results, own, curve) if own else _NOTHING
        if not len(step):
            continue
        point = len(step) == 1
        form = "o" if point else "-"
        ax.plot(step, mean, form, color=colour, linewidth=width, clip_on=not point)
        if half is not None:
            low, high = np.clip([mean - half, mean + half], 0, 100)
            ax.fill_between(step, low, high, color=colour, alpha=0.14, linewidth=0)
        ends.append((float(mean[-1]), s.entry.row, colour))
    for x in boundaries(with_boundaries(served)[1]):
        ax.axvline(x, color=FAINT, linewidth=0.9, zorder=0)
    grid(ax)
    return ends


_NOTHING: tuple[Floats, Floats, None] = np.empty(0), np.empty(0), None


def once(served: Sequence[Served]) -> list[Served]:
    """Merge entries that differ only in their statistics; keep the shortest name."""
    groups: dict[Hashable, list[Served]] = {}
    for s in served:
        groups.setdefault((frozen(s.entry.given), s.entry.donor), []).append(s)
    return [min(group, key=lambda s: len(s.entry.row)) for group in groups.values()]


def anytime(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the any-time accuracy under BN and IBN, with one figure per base method."""
    usable = with_curves(once(served))
    if not usable:
        return [], ["Any-time curves: left out, no run was scored between task ends."]
    with styled():
        groups = by_family(usable, name)
        return [_anytime(group, stem, title) for stem, group in groups], []


def _anytime(served: Sequence[Served], name: str, title: str) -> Plot:
    shown = [statistics for statistics in STATISTICS if with_curve(served, statistics)]
    figure, axes = new_figure(1, len(shown), sharey=True, height=2.9)
    for ax, statistics in zip(axes[0], shown, strict=True):
        ends = draw(ax, served, statistics, so_far, palette=colours(served))
        ax.set_title(STATISTICS[statistics])
        ax.set_xlabel("step")
        ax.margins(x=0)
        few_ticks(ax, 4)
    axes[0][0].set_ylabel("accuracy so far (%)")
    _name_lines(figure, axes[0][-1], served, ends, colours(served))
    names = ", ".join(s.entry.row for s in served)
    caption = (
        f"Any-time accuracy, {title}: mean over the tasks seen so far; {_seeds(served)}. "
        f"{lines(served)}"
    )
    both = " and ".join(STATISTICS[statistics] for statistics in shown)
    return Plot(name, caption, f"Any-time accuracy over steps of {names}, {both}", figure)


def _name_lines(
    figure: Figure,
    ax: Axes,
    served: Sequence[Served],
    ends: Sequence[tuple[float, str, str]],
    palette: Sequence[str],
) -> None:
    """Write names at the ends of the lines, or in a legend above the panels if they are long."""
    if max(len(s.entry.row) for s in served) > LABEL:
        key(figure, [s.entry.row for s in served], palette)
    else:
        label_ends(ax, ends)


def _seeds(served: Sequence[Served]) -> str:
    counts = {len(s.results) for s in served}
    return "one seed" if counts == {1} else f"mean and 95 % band over {seeds(*counts)}"


def stability(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the accuracy of each task from its start on, one panel per task."""
    found = once(served)
    statistics = "ibn" if with_curve(found, "ibn") else "bn"
    usable = with_curve(found, statistics)
    if not usable:
        return [], ["Stability gap: left out, no run was scored between task ends."]
    with styled():
        groups = by_family(usable, name)
        return [_stability(group, stem, title, statistics) for stem, group in groups], []


def _stability(served: Sequence[Served], name: str, title: str, statistics: str) -> Plot:
    tasks = 1 + max(served[0].results[0].anytime.task)
    shown = sorted({round(k) for k in np.linspace(0, tasks - 1, min(tasks, PANELS))})
    columns = min(len(shown), 2 if len(shown) > 6 else 3)
    rows = math.ceil(len(shown) / columns)
    high = 1.3 if columns == 2 else 1.75
    figure, axes = new_figure(rows, columns, sharex=True, sharey=True, height=high * rows + 0.8)
    cells = [ax for row in axes for ax in row]
    for ax, task in zip(cells, shown, strict=False):
        draw(ax, served, statistics, of_task(task), palette=colours(served), width=1.5)
        ax.set_title(f"task {task + 1}", fontweight="normal", fontsize=10)
        ax.margins(x=0)
        few_ticks(ax, 4)
    top = min(20 * math.ceil(max(ax.get_ylim()[1] for ax in cells) / 20), 100)
    cells[0].set(ylim=(0, top), yticks=[0, top // 2, top])
    for ax in cells[len(shown) :]:
        ax.set_axis_off()
    for ax in cells[len(shown) - columns : len(shown)]:  # no panel below these
        ax.tick_params(labelbottom=True)
    figure.supxlabel("step", fontsize=11)
    figure.supylabel("accuracy (%)", fontsize=11)
    key(figure, [s.entry.row for s in served], colours(served))
    caption = (
        f"Stability gap, {title}: accuracy of each task from its start on, evaluated with "
        f"{STATISTICS[statistics]}; {_seeds(served)}. A dip after a vertical line is the accuracy "
        f"that an old task loses when a new one begins. {lines(served)}"
    )
    names = ", ".join(s.entry.row for s in served)
    return Plot(name, caption, f"Accuracy of each task over steps of {names}", figure)


def shift(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the accuracy of task 1 under several class orders, which shows the feature shift."""
    usable = with_curves(served)
    if not usable:
        return [], ["Feature shift: left out, no run was scored between task ends."]
    with styled():
        figure, axes = new_figure(1, 1, height=3.2)
        ax = axes[0][0]
        palette = colours(usable)
        ends = draw(ax, usable, None, of_task(0), palette=palette)
        for n, x in enumerate(boundaries(with_boundaries(usable)[1])):
            ax.annotate(
                f"task {n + 2}", (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", va="bottom", ha="center", fontsize=8.5, color=MUTED,
            )  # fmt: skip
        ax.set(xlabel="step", ylabel="accuracy of task 1 (%)", ylim=(0, 100))
        ax.margins(x=0)
        _name_lines(figure, ax, usable, ends, palette)
    caption = (
        f"Feature shift, {title}: accuracy of task 1 when different classes follow; "
        f"{_seeds(usable)}. All curves have the same label distribution. "
        f"{lines(usable)}"
    )
    names = ", ".join(s.entry.row for s in usable)
    return [Plot(name, caption, f"Accuracy of task 1 over steps: {names}", figure)], []
