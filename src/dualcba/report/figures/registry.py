"""Figures by the names that experiments use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualcba.errors import unknown
from dualcba.report.comparison import Served
from dualcba.report.figures import curves, posteriors
from dualcba.report.figures.style import Drawn, Plot

FIGURES: dict[str, Callable[[Sequence[Served], str, str], Drawn]] = {
    "anytime": curves.anytime,
    "stability": curves.stability,
    "shift": curves.shift,
    "predictions": posteriors.predictions,
    "posterior": posteriors.posterior,
    "transitions": posteriors.transitions,
    "alignment": posteriors.alignment,
}


def draw_all(kinds: Sequence[str], served: Sequence[Served], name: str) -> Drawn:
    """Draw figures of several kinds."""
    drawn = [draw(kind, served, f"{name}-{kind}" if len(kinds) > 1 else name) for kind in kinds]
    plots = [plot for found, _ in drawn for plot in found]
    return plots, [remark for _, remarks in drawn for remark in remarks]


def draw(kind: str, served: Sequence[Served], name: str) -> Drawn:
    """Draw figures of one kind, one or more per column that has runs."""
    if kind not in FIGURES:
        raise ValueError(unknown("figure", kind, FIGURES))
    plots: list[Plot] = []
    remarks: list[str] = []
    columns = list(dict.fromkeys(s.entry.column for s in served))
    for number, column in enumerate(columns, 1):
        part = [s for s in served if s.entry.column == column and s.results]
        if not part:
            continue
        stem = name if len(columns) == 1 else f"{name}-{number}"
        drawn, left_out = FIGURES[kind](part, stem, column)
        plots += drawn
        remarks += [f"{column}: {line}" for line in left_out]
    return plots, remarks
