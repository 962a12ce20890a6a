"""Curves over the stream: any-time accuracy, the stability gap, a task under two class orders."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dualcba.evaluation import STATISTICS, interval
from dualcba.report.comparison import Result, Served
from dualcba.report.figures.style import (
    FAINT,
    MUTED,
    Axes,
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
from dualcba.report.names import NORMS as NORM_TITLES
from dualcba.report.names import seeds

Floats = NDArray[np.float64]
Curve = Callable[[Result, str], tuple[Floats, Floats]]
LABEL = 15
"""Letters that find room at the end of a line; with longer names a key stands above."""

PANELS = 12
"""More tasks than this are shown by as many, evenly spaced."""


def has_curve(result: Result) -> bool:
    """Whether any-time points were scored."""
    return bool(result.get("anytime", {}).get("step"))


def so_far(result: Result, norm: str) -> tuple[Floats, Floats]:
    """Steps, and the mean accuracy over the tasks seen so far."""
    points = result["anytime"]
    return np.array(points["step"], float), np.array([np.mean(row) for row in points[norm]])


def of_task(task: int) -> Curve:
    """Steps and accuracy of one task, from when it begins; tasks count from 0."""

    def curve(result: Result, norm: str) -> tuple[Floats, Floats]:
        points = result["anytime"]
        kept = [
            (s, row[task])
            for s, row in zip(points["step"], points[norm], strict=True)
            if len(row) > task
        ]
        return np.array([s for s, _ in kept], float), np.array([v for _, v in kept], float)

    return curve


def band(
    results: Sequence[Result], norm: str, curve: Curve
) -> tuple[Floats, Floats, Floats | None]:
    """Steps, mean and half-width of the 95 % interval over seeds.

    Where the points of seeds differ they are interpolated at those of the first.
    """
    curves = [curve(r, norm) for r in results]
    step = curves[0][0]
    step = step[step <= min((s[-1] for s, _ in curves if len(s)), default=np.inf)]
    rows = np.array([v if np.array_equal(s, step) else np.interp(step, s, v) for s, v in curves])
    if len(rows) < 2:
        return step, rows[0], None
    halves = [interval(list(column))[1] or 0.0 for column in rows.T]
    return step, rows.mean(0), np.array(halves)


def boundaries(result: Result) -> list[float]:
    """Steps between the last point of a task and the first of the next."""
    steps, task = result["anytime"]["step"], result["anytime"]["task"]
    return [(steps[k] + steps[k + 1]) / 2 for k in range(len(task) - 1) if task[k + 1] > task[k]]


def draw(
    ax: Axes,
    served: Sequence[Served],
    norm: str | None,
    curve: Curve,
    *,
    palette: Sequence[str],
    width: float = 2.0,
) -> list[tuple[float, str, str]]:
    """Mean and band of each entry, under a norm or its own; where lines end, names, colours."""
    ends = []
    for s, colour in zip(served, palette, strict=True):
        step, mean, half = band(s.results, norm or s.entry.norm, curve)
        if not len(step):
            continue
        ax.plot(step, mean, color=colour, linewidth=width)
        if half is not None:
            low, high = np.clip([mean - half, mean + half], 0, 100)
            ax.fill_between(step, low, high, color=colour, alpha=0.14, linewidth=0)
        ends.append((float(mean[-1]), s.entry.row, colour))
    for x in boundaries(served[0].results[0]):
        ax.axvline(x, color=FAINT, linewidth=0.9, zorder=0)
    grid(ax)
    return ends


def once(served: Sequence[Served]) -> list[Served]:
    """Entries that differ only in their norm as one, by the shortest of their names."""
    groups: dict[str, list[Served]] = {}
    for s in served:
        groups.setdefault(json.dumps(s.entry.spec, sort_keys=True), []).append(s)
    return [min(group, key=lambda s: len(s.entry.row)) for group in groups.values()]


def anytime(served: Sequence[Served], name: str, title: str) -> tuple[list[Plot], list[str]]:
    """Mean accuracy over the tasks so far, at any time, under BN and IBN; a figure per family."""
    usable = [s for s in once(served) if s.results and all(map(has_curve, s.results))]
    if not usable:
        return [], ["Any-time curves: left out, no run was scored between task ends."]
    with styled():
        groups = by_family(usable, name)
        return [_anytime(group, stem, title) for stem, group in groups], []


def _anytime(served: Sequence[Served], name: str, title: str) -> Plot:
    figure, axes = new_figure(1, 2, sharey=True, height=2.9)
    for ax, norm in zip(axes[0], STATISTICS, strict=True):
        ends = draw(ax, served, norm, so_far, palette=colours(served))
        ax.set_title(NORM_TITLES[norm])
        ax.set_xlabel("step")
        ax.margins(x=0)
        few_ticks(ax, 4)
    axes[0][0].set_ylabel("accuracy so far (%)")
    _name(figure, axes[0][1], served, ends, colours(served))
    names = ", ".join(s.entry.row for s in served)
    caption = (
        f"Any-time accuracy, {title}: mean over the tasks seen so far, {_seeds(served)}. "
        "Vertical lines are task boundaries."
    )
    return Plot(name, caption, f"Any-time accuracy over steps of {names}, BN and IBN", figure)


def _name(
    figure: Figure,
    ax: Axes,
    served: Sequence[Served],
    ends: Sequence[tuple[float, str, str]],
    palette: Sequence[str],
) -> None:
    """Names where the lines end, or above where they are long."""
    if max(len(s.entry.row) for s in served) > LABEL:
        key(figure, [s.entry.row for s in served], palette)
    else:
        label_ends(ax, ends)


def _seeds(served: Sequence[Served]) -> str:
    counts = {len(s.results) for s in served}
    return "one seed" if counts == {1} else f"mean and 95 % band over {seeds(*counts)}"


def stability(
    served: Sequence[Served], name: str, title: str, norm: str = "ibn"
) -> tuple[list[Plot], list[str]]:
    """One panel per task: its accuracy from when it begins; dips are the stability gap."""
    usable = [s for s in once(served) if s.results and all(map(has_curve, s.results))]
    if not usable:
        return [], ["Stability gap: left out, no run was scored between task ends."]
    with styled():
        groups = by_family(usable, name)
        return [_stability(group, stem, title, norm) for stem, group in groups], []


def _stability(served: Sequence[Served], name: str, title: str, norm: str) -> Plot:
    tasks = 1 + max(served[0].results[0]["anytime"]["task"])
    shown = sorted({round(k) for k in np.linspace(0, tasks - 1, min(tasks, PANELS))})
    columns = min(len(shown), 2 if len(shown) > 6 else 3)
    rows = math.ceil(len(shown) / columns)
    high = 1.3 if columns == 2 else 1.75
    figure, axes = new_figure(rows, columns, sharex=True, sharey=True, height=high * rows + 0.8)
    cells = [ax for row in axes for ax in row]
    for ax, task in zip(cells, shown, strict=False):
        draw(ax, served, norm, of_task(task), palette=colours(served), width=1.5)
        ax.set_title(f"task {task + 1}", fontweight="normal", fontsize=10)
        ax.margins(x=0)
        few_ticks(ax, 4)
    top = 20 * math.ceil(max(ax.get_ylim()[1] for ax in cells) / 20)
    cells[0].set(ylim=(0, min(top, 100)), yticks=[0, min(top, 100) // 2, min(top, 100)])
    for ax in cells[len(shown) :]:
        ax.set_axis_off()
    for ax in cells[len(shown) - columns : len(shown)]:  # nothing stands below these
        ax.tick_params(labelbottom=True)
    figure.supxlabel("step", fontsize=11)
    figure.supylabel("accuracy (%)", fontsize=11)
    key(figure, [s.entry.row for s in served], colours(served))
    caption = (
        f"Stability gap, {title}: accuracy of each task from when it begins, evaluated under "
        f"{NORM_TITLES[norm]}, {_seeds(served)}. A dip behind a vertical line is what an old task "
        "loses when a new one begins."
    )
    names = ", ".join(s.entry.row for s in served)
    return Plot(name, caption, f"Accuracy of each task over steps of {names}", figure)


def shift(served: Sequence[Served], name: str, title: str) -> tuple[list[Plot], list[str]]:
    """Accuracy of task 1 under class orders that differ: what the features' shift alone does."""
    usable = [s for s in served if s.results and all(map(has_curve, s.results))]
    if not usable:
        return [], ["Feature shift: left out, no run was scored between task ends."]
    with styled():
        figure, axes = new_figure(1, 1, height=3.2)
        ax = axes[0][0]
        palette = colours(usable)
        ends = draw(ax, usable, None, of_task(0), palette=palette)
        for n, x in enumerate(boundaries(usable[0].results[0])):
            ax.annotate(
                f"task {n + 2}", (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", va="bottom", ha="center", fontsize=8.5, color=MUTED,
            )  # fmt: skip
        ax.set(xlabel="step", ylabel="accuracy of task 1 (%)", ylim=(0, 100))
        ax.margins(x=0)
        _name(figure, ax, usable, ends, palette)
    caption = (
        f"Feature shift, {title}: accuracy of task 1 when different classes follow, "
        f"{_seeds(usable)}. The labels' distribution is the same in all of them."
    )
    names = ", ".join(s.entry.row for s in usable)
    return [Plot(name, caption, f"Accuracy of task 1 over steps: {names}", figure)], []
