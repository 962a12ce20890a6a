"""The style of all figures: colours, fonts, axes, labels and file formats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import Any

from dualcba.options import BALANCED
from dualcba.report.comparison import Served
from dualcba.report.names import split_method

Figure = Any
Axes = Any
"""Types of matplotlib, which is imported only when a figure is drawn."""

INK, MUTED, FAINT = "#1f2328", "#646b73", "#d5d9de"
GREY, ORANGE, BLUE, GREEN = "#70767d", "#d55e00", "#0072b2", "#009e73"
MORE = (GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#8c6bb1", "#000000", "#a6761d")
"""Colour-blind safe colours, after Okabe and Ito."""

FAMILIES = {"": GREY, "cba": ORANGE, "dual-cba": BLUE, BALANCED: GREEN}
"""The colour of a plain method, and of each kind of adaptor."""

WIDTH = 6.6
"""Width of a figure in inches; its text stays readable at half of it."""

STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "text.parse_math": False,  # the name of a row may have dollar signs
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.06,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "dualcba",
}


@dataclass(frozen=True)
class Plot:
    """A figure with its file name, its caption and its alternative text."""

    name: str
    caption: str
    alt: str
    figure: Figure


Drawn = tuple[list[Plot], list[str]]
"""Figures, and a remark for each figure that could not be drawn."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style inside the block."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def new_figure(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure and its axes by row and column; this needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = options.pop("height", 2.7 * rows)
    figure = Figure(figsize=(options.pop("width", WIDTH), height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def render(plot: Plot, format: str) -> bytes:
    """Return the figure as `svg` or `png`; the bytes are reproducible."""
    out = BytesIO()
    metadata = {"Date": None} if format == "svg" else {"Software": None}
    with styled():
        plot.figure.savefig(out, format=format, dpi=200, metadata=metadata)
    return out.getvalue()


def colours(served: Sequence[Served]) -> list[str]:
    """Return a distinct colour per entry: that of its kind of adaptor unless it is taken."""
    out: list[str] = []
    for s in served:
        own = FAMILIES[split_method(s.entry.method)[1]]
        free = [c for c in (own, *MORE) if c not in out]
        out.append(free[0] if free else own)
    return out


def families(served: Sequence[Served]) -> list[tuple[str, list[Served]]]:
    """Group entries by base method; methods that have no adaptor form the last group."""
    bases: dict[str, list[Served]] = {}
    pairs = [(split_method(s.entry.method), s) for s in served]
    for (base, _), s in pairs:
        bases.setdefault(base, []).append(s)
    adapted = {base for (base, kind), _ in pairs if kind}
    out = [(base, group) for base, group in bases.items() if base in adapted]
    rest = [s for base, group in bases.items() if base not in adapted for s in group]
    return out + ([("others", rest)] if rest else [])


def by_family(served: Sequence[Served], name: str) -> list[tuple[str, list[Served]]]:
    """Split entries by base method over figures; return the name and the entries of each figure.

    A single figure gets the plain name. A group with more entries than colours fills several
    figures.
    """
    groups = families(served)
    return [
        (stem if k == 0 else f"{stem}-part-{k // len(MORE) + 1}", group[k : k + len(MORE)])
        for base, group in groups
        for stem in [name if len(groups) == 1 else f"{name}-{base}"]
        for k in range(0, len(group), len(MORE))
    ]


def pale(colour: str, share: float = 0.42) -> tuple[float, float, float]:
    """Return an opaque mix of the colour with white."""
    from matplotlib.colors import to_rgb

    r, g, b = (1 - share * (1 - part) for part in to_rgb(colour))
    return r, g, b


def grid(ax: Axes, axis: str = "y") -> None:
    """Draw faint grid lines."""
    ax.grid(axis=axis, color=FAINT, linewidth=0.7)
    ax.tick_params(length=0)


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Move positions as little as possible until they are at least `gap` apart, in the same order.

    >>> apart([10.0, 10.0, 50.0], 4.0)
    [8.0, 12.0, 50.0]
    """
    order = sorted(range(len(values)), key=lambda k: values[k])
    blocks: list[list[int]] = []
    for k in order:
        blocks.append([k])
        while len(blocks) > 1 and _top(blocks[-2], values, gap) + gap > _low(
            blocks[-1], values, gap
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    out = [0.0] * len(values)
    for block in blocks:
        for n, k in enumerate(block):
            out[k] = _low(block, values, gap) + n * gap
    return out


def _low(block: Sequence[int], values: Sequence[float], gap: float) -> float:
    return sum(values[k] for k in block) / len(block) - gap * (len(block) - 1) / 2


def _top(block: Sequence[int], values: Sequence[float], gap: float) -> float:
    return _low(block, values, gap) + gap * (len(block) - 1)


def key(figure: Figure, names: Sequence[str], tints: Sequence[str]) -> None:
    """Draw a legend above the panels, in as many columns as fit; long names are wrapped."""
    from matplotlib.patches import Patch

    width = figure.get_figwidth()
    labels = ["\n".join(wrap(name, int(width * 8.5))) for name in names]
    longest = max(map(len, names))
    columns = max(1, min(len(names), int(width * 10 / (longest + 5))))
    rows = math.ceil(len(names) / columns)
    lines = rows if columns > 1 else sum(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.24 * (lines - 1))
    handles = [Patch(facecolor=tint, label=name) for name, tint in zip(labels, tints, strict=True)]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, labelcolor="linecolor",
        prop={"weight": "bold"}, handlelength=0.9, handleheight=0.7, columnspacing=1.4,
        borderaxespad=0.3,
    )  # fmt: skip


def few_ticks(ax: Axes, count: int) -> None:
    """Limit the number of ticks on the x axis."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(count, integer=True))


LABEL = 26
"""The longest axis label that stays on one line, in characters."""


LINE = 40
"""The longest line of a wrapped label, in characters."""


def folded(label: str) -> str:
    """Return a label with a line break at each comma, and where a line is too long.

    >>> folded("ER, agnostic from runs/a/digits-online-er-dual-cba/agnostic.safetensors")
    'ER,\\nagnostic from runs/a/digits-online-er-\\ndual-cba/agnostic.safetensors'
    """
    return "\n".join(
        line for part in label.replace(", ", ",\n").split("\n") for line in wrap(part, LINE)
    )


def beside(label: str) -> str:
    """Return a label for the y axis, with line breaks if it is long.

    >>> beside("ER-Dual-CBA, specific individual, freeze after 6")
    'ER-Dual-CBA,\\nspecific individual,\\nfreeze after 6'
    """
    return folded(label) if len(label) > LABEL else label


def label_ends(ax: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of lines, given the last value, the name and the colour of each."""
    low, high = ax.get_ylim()
    room = [min(max(y, low), high) for y, _, _ in ends]
    for y, (_, text, colour) in zip(apart(room, (high - low) * 0.085), ends, strict=True):
        ax.annotate(
            text, (1, y), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", color=colour, fontweight="bold",
            annotation_clip=False,
        )  # fmt: skip
