"""Bar charts: final accuracy under BN and IBN, with the paper's values, and the cost of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualcba.report.comparison import Cell, Row, Served
from dualcba.report.figures.style import (
    FAMILIES,
    INK,
    MUTED,
    Axes,
    Drawn,
    Plot,
    beside,
    grid,
    new_figure,
    pale,
    styled,
)
from dualcba.report.names import STATISTICS, split_method


def score_bars(rows: Sequence[Row], methods: Sequence[str], name: str, title: str) -> Plot:
    """Draw ACC per method: BN pale, IBN solid, error bars, and diamonds for the paper's values."""
    with styled():
        labels = [beside(row.row) for row in rows]
        figure, axes = new_figure(height=1.0 + max(0.46, _room(labels)) * max(len(rows), 3))
        ax = axes[0][0]
        for place, (row, method) in enumerate(zip(rows, methods, strict=True)):
            cell = next(c for c in row.cells if c.score == "acc")
            _pair(ax, place, cell, FAMILIES[split_method(method)[1]])
        ax.set_yticks(range(len(rows)), labels)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(0, min(100, ax.get_xlim()[1]))  # an error bar may exceed 100 %
        ax.set_xlabel("ACC (%)")
        grid(ax, "x")
        ax.spines["left"].set_visible(False)
        paper = any(c.paper is not None for r in rows for c in r.cells if c.score == "acc")
        _key(ax, rows[0].beside if paper else "")
    caption = f"ACC, {title}: BN (pale) and IBN (solid); error bars: 95 % interval over seeds"
    whose = "the paper’s" if rows[0].beside == "paper" else rows[0].beside
    caption += f"; diamonds: {whose} values." if paper else "."
    return Plot(name, caption, "Bars of ACC per method with BN and IBN", figure)


def _pair(ax: Axes, place: float, cell: Cell, colour: str) -> None:
    """Draw the bars of BN and IBN, and the paper's value on the one with its statistics."""
    for side, m, statistics in ((-0.19, cell.bn, "bn"), (0.19, cell.ibn, "ibn")):
        y = place + side
        if m is not None:
            face = pale(colour) if statistics == "bn" else colour
            ax.barh(y, m.mean, height=0.34, color=face, linewidth=0)
            if m.half is not None:
                ax.errorbar(m.mean, y, xerr=m.half, color=INK, linewidth=1, capsize=2)
        if statistics == cell.statistics and cell.paper is not None:
            ax.plot(cell.paper, y, "D", color="white", markeredgecolor=INK, markersize=5.5)


def _room(labels: Sequence[str]) -> float:
    """Return the height of the tallest label with a margin, in inches."""
    return 0.19 * max((label.count("\n") + 1 for label in labels), default=1) + 0.04


def _key(ax: Axes, beside: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[object] = [
        Patch(facecolor=pale(MUTED), label=STATISTICS["bn"]),
        Patch(facecolor=MUTED, label=STATISTICS["ibn"]),
    ]  # fmt: skip
    if beside:
        diamond = Line2D(
            [], [], label=beside, marker="D", linestyle="", color="white", markeredgecolor=INK
        )
        handles.append(diamond)
    ax.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip


def cost(served: Sequence[Served], name: str, title: str) -> Drawn:
    """Draw the mean seconds per run: training (solid) and evaluation (pale)."""
    served = [s for s in served if None not in (seconds(s, "train"), seconds(s, "evaluate"))]
    if not served:
        return [], ["Cost: left out, no run recorded its time."]
    with styled():
        labels = [beside(s.entry.row) for s in served]
        figure, axes = new_figure(height=1.0 + max(0.32, _room(labels)) * max(len(served), 3))
        ax = axes[0][0]
        for place, s in enumerate(served):
            colour = FAMILIES[split_method(s.entry.method)[1]]
            train, evaluate = (seconds(s, part) or 0.0 for part in ("train", "evaluate"))
            ax.barh(place, train, height=0.6, color=colour, linewidth=0)
            ax.barh(place, evaluate, left=train, height=0.6, color=pale(colour, 0.3), linewidth=0)
            ax.annotate(
                f"{train:,.3g} + {evaluate:,.3g}", (train + evaluate, place), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=9, color=MUTED,
            )  # fmt: skip
        ax.set_yticks(range(len(served)), labels)
        ax.set_ylim(len(served) - 0.4, -0.6)
        ax.margins(x=0.25)
        ax.set_xlim(left=0)
        ax.set_xlabel("seconds per run: train + evaluate")
        grid(ax, "x")
        ax.spines["left"].set_visible(False)
    caption = f"Seconds per run (wall clock), {title}: training (solid) and evaluation (pale)."
    alt = "Bars of seconds to train and to evaluate per method"
    return [Plot(name, caption, alt, figure)], []


def seconds(served: Served, part: str) -> float | None:
    """Return the mean over seeds, or None if it was not recorded."""
    found = [r.seconds[part] for r in served.results if part in r.seconds]
    return float(np.mean(found)) if found else None
