"""Figures of predictions: confusion, predictions per task, posteriors at task transitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualcba.experiments.result import Result
from dualcba.report.comparison import Served
from dualcba.report.figures.curves import at_common_steps
from dualcba.report.figures.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    MUTED,
    ORANGE,
    Axes,
    Drawn,
    Figure,
    Plot,
    by_family,
    colours,
    folded,
    grid,
    key,
    label_ends,
    new_figure,
    styled,
)
from dualcba.report.names import STATISTICS, averaged
from dualcba.report.results import task_classes
from dualcba.report.tables.model import number

Floats = NDArray[np.float64]
SMOOTH = 40
"""Curves with at least so many points are smoothed."""

CLASSES = 20
"""With more classes, confusion is shown between tasks."""


def recorded(served: Sequence[Served], what: str) -> list[Served]:
    """Return the entries of which every result has the recording `what`."""
    return [s for s in served if s.results and all(_recording(r, what) for r in s.results)]


def _recording(result: Result, what: str) -> Any:
    return result.recordings.get(what)


def confusion(served: Served, statistics: str) -> tuple[Floats, list[list[int]]]:
    """Return the confusion matrix, true classes × predictions, and the classes of each task.

    Rows sum to 1. Classes are in order of arrival.
    """
    tables = []
    for result in served.results:
        counts = np.array(_recording(result, "predictions")[statistics], float)
        order = [c for task in task_classes(result, len(counts)) for c in task]
        tables.append(counts[np.ix_(order, order)])
    total = np.sum(tables, axis=0)
    rows = np.maximum(total.sum(1, keepdims=True), 1)
    tasks = task_classes(served.results[0], len(counts))
    return np.asarray(total / rows), tasks


def predictions(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the share of predictions per task and confusion matrices, at the end of the stream."""
    usable = recorded(served, "predictions")
    if not usable:
        return [], ["Confusion and predictions: left out, no predictions were recorded."]
    plots = []
    with styled():
        for stem, group in by_family(usable, name):
            plots.append(_shares(group, f"{stem}-share", title))
            plots.append(_confusions(group, f"{stem}-confusion", title))
    return plots, []


def by_task(table: Floats, tasks: list[list[int]]) -> Floats:
    """Return the confusion between tasks, given that between classes; rows sum to 1."""
    starts = np.cumsum([0, *map(len, tasks)])[:-1]
    sums = np.add.reduceat(np.add.reduceat(table, starts, axis=1), starts, axis=0)
    return np.asarray(sums / sums.sum(1, keepdims=True))


def _shares(served: Sequence[Served], name: str, title: str) -> Plot:
    figure, axes = new_figure(1, 1, height=2.9)
    ax = axes[0][0]
    width = 0.8 / len(served)
    for n, (s, colour) in enumerate(zip(served, colours(served), strict=True)):
        table, tasks = confusion(s, s.entry.statistics)
        ends = np.cumsum([0, *map(len, tasks)])
        share = [100 * table[:, a:b].sum() / table.sum() for a, b in pairwise(ends)]
        x = np.arange(len(tasks)) + (n - (len(served) - 1) / 2) * width
        ax.bar(x, share, width * 0.92, color=colour, linewidth=0)
    even = [100 * len(t) / ends[-1] for t in tasks]
    ax.step(
        np.arange(-1, len(tasks) + 1), [even[0], *even, even[-1]], where="mid", color=INK,
        linewidth=1, linestyle=(0, (4, 3)),
    )  # fmt: skip
    ax.set_xlim(-0.6, len(tasks) - 0.4)
    ax.set_xticks(range(len(tasks)), [str(k + 1) for k in range(len(tasks))])
    ax.set(xlabel="predicted task", ylabel="predictions (%)")
    grid(ax)
    key(figure, [s.entry.row for s in served], colours(served))
    caption = (
        f"Share of predictions per task at the end of the stream, with classes weighted equally, "
        f"{title}, {_statistics(served)}. Dashed: unbiased predictions."
    )
    return Plot(name, caption, "Bars: share of predictions on each task, per method", figure)


def _statistics(served: Sequence[Served]) -> str:
    found = {s.entry.statistics for s in served}
    if len(found) == 1:
        return f"evaluated with {STATISTICS[found.pop()]}"
    return "; ".join(f"{s.entry.row} with {STATISTICS[s.entry.statistics]}" for s in served)


def _confusions(served: Sequence[Served], name: str, title: str) -> Plot:
    columns = min(3, len(served))
    rows = math.ceil(len(served) / columns)
    width = 2.4 * columns
    figure, axes = new_figure(rows, columns, width=max(width, 3.4), height=2.55 * rows + 0.35)
    cells = [ax for row in axes for ax in row]
    for ax in cells[len(served) :]:
        ax.set_axis_off()
    found = [confusion(s, s.entry.statistics) for s in served]
    many = any(len(table) > CLASSES for table, _ in found)
    if many:
        found = [
            (by_task(table, tasks), [[k] for k in range(len(tasks))]) for table, tasks in found
        ]
    top = math.ceil(10 * max(table.max() for table, _ in found)) / 10
    for n, (ax, s, (table, tasks)) in enumerate(zip(cells, served, found, strict=False)):
        image = ax.imshow(table, cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
        _task_axes(ax, tasks, lines=not many)
        ax.set_title(folded(s.entry.row), fontsize=10)
        if n % columns == 0:
            ax.set_ylabel("true task", fontsize=9.5)
    _colour_bar(figure, image, cells, top)
    what = "between tasks" if many else "between classes in order of arrival"
    caption = (
        f"Confusion {what} at the end of the stream, {title}, {_statistics(served)}; "
        "each row sums to 1."
    )
    return Plot(name, caption, "Confusion matrices, one per method", figure)


def _colour_bar(figure: Figure, image: Any, cells: Sequence[Axes], top: float) -> None:
    """Draw the colour bar."""
    bar = figure.colorbar(image, ax=cells, shrink=0.75, aspect=25, ticks=[0, top / 2, top])
    bar.outline.set_visible(False)
    bar.set_label("share of the row", fontsize=9.5)
    bar.ax.tick_params(length=0, labelsize=9)


def _task_axes(ax: Axes, tasks: list[list[int]], *, lines: bool) -> None:
    """Label both axes with the numbers of tasks; draw lines between tasks."""
    ends = np.cumsum([0, *map(len, tasks)])
    for e in ends[1:-1] - 0.5 if lines else ():
        ax.axvline(e, color=FAINT, linewidth=0.6)
        ax.axhline(e, color=FAINT, linewidth=0.6)
    middles = (ends[:-1] + ends[1:] - 1) / 2
    names = [str(k + 1) for k in range(len(tasks))]
    ax.set_xticks(middles, names, fontsize=9)
    ax.set_yticks(middles, names, fontsize=9)
    ax.tick_params(length=0)
    ax.set_xlabel("predicted task", fontsize=9.5)


def posterior(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the mean posterior of the test samples of an old class at the last task transition."""
    usable = recorded(served, "transitions")
    usable = [s for s in usable if all(_last(r).get("classes") for r in s.results)]
    if not usable:
        return [], ["Posterior at a transition: left out, no transitions were recorded."]
    with styled():
        return [
            _posterior(group[k : k + 3], stem if k == 0 else f"{stem}-{k // 3 + 1}", title)
            for stem, group in by_family(usable, name)
            for k in range(0, len(group), 3)
        ], []


def _last(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = _recording(result, "transitions")[-1]
    return found


def _posterior(served: Sequence[Served], name: str, title: str) -> Plot:
    columns = len(served)
    figure, axes = new_figure(2, columns, sharex=True, sharey=True, height=3.9)
    for column, s in enumerate(served):
        last = _last(s.results[0])
        own = int(last["classes"]["class"])
        alike = [r for r in s.results if int(_last(r)["classes"]["class"]) == own]
        tasks = task_classes(s.results[0], len(last["classes"]["before"]))
        order = [c for task in tasks for c in task]
        new = set(tasks[int(last["task"]) - 1])
        for row, when in enumerate(("before", "after")):
            mean = np.mean([_last(r)["classes"][when] for r in alike], axis=0)[order]
            tint = [BLUE if c == own else ORANGE if c in new else GREY for c in order]
            _class_bars(axes[row][column], mean, tint, tasks, every=columns)
        axes[0][column].set_title(folded(s.entry.row), fontsize=10.5)
    figure.supxlabel("classes, by the number of their task", fontsize=11)
    for row, when in enumerate(("before", "after")):
        axes[row][0].set_ylabel(f"posterior {when}")
    names = [f"true class ({own})", "new task", "other classes"]
    key(figure, names, [BLUE, ORANGE, GREY])
    caption = (
        f"Mean posterior of test samples of class {own} before and after task {last['task']} "
        f"begins, {title}, {averaged(len(alike))}."
    )
    alt = f"Posterior over classes before and after the start of task {last['task']}"
    return Plot(name, caption, alt, figure)


def _class_bars(
    ax: Axes, mean: Floats, tint: list[str], tasks: list[list[int]], every: int
) -> None:
    """Draw bars in order of arrival; with many tasks, label only each `every`-th one."""
    ax.bar(np.arange(len(mean)), mean, 0.85 if len(mean) <= CLASSES else 1, color=tint)
    ends = np.cumsum([0, *map(len, tasks)])
    for e in ends[1:-1] - 0.5:
        ax.axvline(e, color=FAINT, linewidth=0.7, zorder=0)
    every = every if len(tasks) > 5 else 1
    middles = (ends[:-1] + ends[1:] - 1) / 2
    ax.set_xticks(middles[::every], [str(k + 1) for k in range(0, len(tasks), every)])
    ax.set_xlim(-0.7, len(mean) - 0.3)
    ax.set_ylim(0, None)
    grid(ax)


def transitions(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the posterior mass on old and new classes around task boundaries, a figure per method.

    Recorded steps are drawn at equal distances, although they are sparser far from a boundary. Only
    steps that all seeds have are drawn, since the lengths of tasks may differ between seeds.
    """
    usable = recorded(served, "transitions")
    if not usable:
        return [], ["Old and new posterior: left out, no transitions were recorded."]
    with styled():
        return [_transitions(s, f"{name}-{n}", title) for n, s in enumerate(usable, 1)], []


def _transitions(s: Served, name: str, title: str) -> Plot:
    figure, axes = new_figure(2, 1, sharex=True, sharey=True, height=4.0)
    recordings = [_recording(r, "transitions") for r in s.results]
    moments = [_mean_moment(found) for found in zip(*recordings, strict=True)]
    span = max(len(moment["step"]) for moment in moments) * 1.12
    ticks = []
    for ax, samples in zip((axes[0][0], axes[1][0]), ("old", "new"), strict=True):
        for k, moment in enumerate(moments):
            x = np.arange(len(moment["step"])) + k * span
            zero = np.interp(0, moment["step"], x)
            for mass, colour in (("p_old", BLUE), ("p_new", ORANGE)):
                ax.plot(x, moment[samples][mass], color=colour, linewidth=1.8)
            ax.axvline(zero, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
            ticks.append((zero, f"{moment['task']}"))
        whose = "of old tasks" if samples == "old" else "of the new task"
        text = f"{s.entry.row}: test samples {whose}"
        ax.set_title(text, fontweight="normal", fontsize=10.5)
        ax.set(ylim=(0, 1.02), ylabel="posterior mass")
        grid(ax)
        ax.margins(x=0.01)
    axes[1][0].set_xticks(*zip(*ticks[: len(moments)], strict=True))
    axes[1][0].set_xlabel("task that begins (dashed); recorded steps around it, at equal distances")
    key(figure, ["on old classes", "on new classes"], [BLUE, ORANGE])
    ranges = {(moment["step"][0], moment["step"][-1]) for moment in moments}
    first, last = min(a for a, _ in ranges), max(b for _, b in ranges)
    caption = (
        f"{s.entry.row}, {title}: posterior mass on old and on new classes around every task "
        f"boundary, from step {number(first, 0)} to {last}{' at most' * (len(ranges) > 1)} "
        f"(recorded steps, at equal distances); {averaged(len(recordings))}."
    )
    return Plot(name, caption, f"Old and new posterior at transitions of {s.entry.row}", figure)


def _mean_moment(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over seeds at one task boundary, at the steps that all seeds have."""
    steps = sorted(set.intersection(*(set(moment["step"]) for moment in found)))

    def mean(samples: str, mass: str) -> Floats:
        rows = [dict(zip(m["step"], m[samples][mass], strict=True)) for m in found]
        return np.asarray(np.mean([[row[step] for step in steps] for row in rows], axis=0))

    masses = {who: {m: mean(who, m) for m in ("p_old", "p_new")} for who in ("old", "new")}
    return {"task": found[0]["task"], "step": steps, **masses}


def alignment(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw ⟨G buf, G trn⟩ with and without the adaptor, and the bound of Theorem 1."""
    usable = recorded(served, "alignment")
    if not usable:
        return [], ["Alignment: left out, no gradients were recorded."]
    with styled():
        return [_alignment(s, f"{name}-{n}", title) for n, s in enumerate(usable, 1)], []


def _alignment(s: Served, name: str, title: str) -> Plot:
    figure, axes = new_figure(1, 1, height=3.0, width=6.4)
    ax = axes[0][0]
    (own,) = colours([s])
    parts = {"with": ("with adaptor", own), "without": ("without", GREY), "bound": ("bound", INK)}
    recordings = [_recording(r, "alignment") for r in s.results]
    points = min(len(r["step"]) for r in recordings)
    if not any(x is not None for r in recordings for x in r["with"]):
        parts = {"without": ("no adaptor", GREY), "bound_without": ("bound", INK)}
    ends = []
    for part, (label, colour) in parts.items():
        last = _alignment_line(ax, recordings, part, points, label=label, colour=colour)
        ends += [] if last is None else [(last, label, colour)]
    ax.axhline(0, color=MUTED, linewidth=0.8, zorder=0)
    ax.set_title(s.entry.row, fontsize=10.5)
    ax.set_xlabel("step")
    ax.set_ylabel(r"$\langle G^{\mathrm{buf}}, G^{\mathrm{trn}}\rangle$", parse_math=True)
    grid(ax)
    ax.margins(x=0)
    label_ends(ax, ends)
    beside = ", with the bound of Theorem 1" if "bound" in (e[1] for e in ends) else ""
    smoothed = ", smoothed; raw values pale" if points >= SMOOTH else ""
    caption = (
        f"Alignment of the gradients on training data and on the memory, {s.entry.row}, {title}"
        f"{beside}; {averaged(len(recordings))}{smoothed}."
    )
    return Plot(name, caption, f"Gradient alignment over steps of {s.entry.row}", figure)


def _alignment_line(
    ax: Axes, recordings: Sequence[Any], part: str, points: int, *, label: str, colour: str
) -> float | None:
    """Draw the smoothed mean over seeds; return its last value, or None if it was not measured."""
    step, rows = at_common_steps([_measured(r, part) for r in recordings])
    if not len(step):
        return None
    mean = rows.mean(0)
    smooth = running_mean(mean, points // SMOOTH)
    if label != "bound" and points >= SMOOTH:
        ax.plot(step, mean, color=colour, alpha=0.25, linewidth=0.8)
    ax.plot(step, smooth, color=colour, linestyle="--" if label == "bound" else "-")
    return float(smooth[-1])


def _measured(recording: Any, part: str) -> tuple[Floats, Floats]:
    """Return the steps at which a part was measured, and its values there."""
    steps = np.array(recording["step"], float)
    values = np.array(recording.get(part, [None] * len(steps)), float)
    there = np.isfinite(values)
    return steps[there], values[there]


def running_mean(values: Floats, width: int) -> Floats:
    """Return the mean over a window around each point; the window is cut off at the ends.

    >>> running_mean(np.array([1.0, 2.0, 6.0]), 1).tolist()
    [1.5, 3.0, 4.0]
    """
    return np.array([values[max(0, k - width) : k + width + 1].mean() for k in range(len(values))])
