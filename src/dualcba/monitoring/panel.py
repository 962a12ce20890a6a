"""Render the numbers of a monitor as a terminal panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

Row = tuple[str | Text, ...]

LINES = 12
"""Largest number of classes to show; others are counted."""

BAR, FIGURE, NAME = 10, 16, 14
"""Widths of accuracy bars, of figures in the summary, and of class names."""

BLOCKS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
COLOURS = {"old": "cyan", "new": "yellow"}
STATUS = {"running": "green", "complete": "blue", "failed": "red", "stopped": "yellow"}


def panel(content: Mapping[str, Any], *, now: float, title: str = "") -> Panel:
    """Return the panel for the content of a monitor's file at the time `now`."""
    status, name = content["status"], content.get("title") or title or "learner"
    when = f" · {_ago(now - content['time'])}" if status == "running" else ""
    parts = _summary(content)
    if content["classes"]:
        parts += [Text(), *_classes(content)]
    return Panel(
        Group(*parts),
        title=Text(f" {name} ", style="bold"),
        title_align="left",
        subtitle=Text(f" {status}{when} ", style=STATUS.get(status, "")),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="dim",
        padding=(1, 2),
    )


def _summary(content: Mapping[str, Any]) -> list[Text]:
    """Return the lines above the classes: name, value, a small figure, remarks."""
    window, memory, loss = content["window"], content["memory"], content["loss"]
    total, figure = content.get("total"), partial(Text, style="green")
    done = f"{content['step']:,}" + (f" / {total:,}" if total else "")
    share = _bar(content["step"] / total, FIGURE) if total else ""
    overall = f"last {window['samples']:,}; all {_percent(content.get('accuracy'))}"
    curve = _spark(window.get("curve", []), FIGURE, 100.0)
    rows: list[Row] = [
        ("step", done, figure(share), f"task {content['task'] + 1}"),
        ("accuracy", _percent(window.get("accuracy")), figure(curve), overall),
        ("loss", _number(loss.get("last")), "", f"mean of 100 steps {_number(loss.get('mean'))}"),
    ]
    for side, value in (content.get("correction") or {}).items():
        name, colour = f"r, {side}", COLOURS.get(side, "")
        rows.append((name, Text(_number(value, sign=True), style=colour), "", "mean correction"))
    rows.append(("memory", f"{memory['samples']:,} / {memory['size']:,}", *_ages(memory["age"])))
    return _aligned(rows, right={1}, dim={0, 3})


def _ages(age: Mapping[str, Any]) -> tuple[Text, str]:
    """Return the histogram of ages, youngest first, and a text with the median."""
    if not age["known"]:
        return Text(), "ages are unknown"
    figure = _spark(age["histogram"], FIGURE, max(age["histogram"]) or 1)
    text = f"median age {age['median']:,.0f}, at most {age['max']:,}"
    return Text(figure, style="magenta"), text


def _classes(content: Mapping[str, Any]) -> list[Text]:
    mistaken, shown = _mistaken(content["confusion"]), _chosen(content["classes"])
    head = ("class", "", "samples", "accuracy", "", "answers", "memory", "taken for")
    rows: list[Row] = [tuple(Text(name, style="dim") for name in head)]
    for one in shown:
        accuracy, side = one["accuracy"], one["side"]
        bar = "" if accuracy is None else _bar(accuracy / 100, BAR)
        rows.append((
            _short(one["class"]), Text(side, style=COLOURS.get(side, "")),
            f"{one['samples']:,}" if one["samples"] else "–", _percent(accuracy),
            Text(bar, style=_tone(accuracy)), _percent(one["answers"]), f"{one['memory']:,}",
            Text(mistaken.get(one["class"], ""), style="dim"),
        ))  # fmt: skip
    lines = _aligned(rows, right={2, 3, 5, 6})
    left = len(content["classes"]) - len(shown)
    more = f"and {left} more, with higher accuracies or without samples"
    rest = Text(more, style="dim", no_wrap=True, overflow="ellipsis")
    return [*lines, rest] if left else lines


def _aligned(rows: Sequence[Row], *, right: Set[int], dim: Set[int] = frozenset()) -> list[Text]:
    """Return rows as lines with aligned columns; long lines are truncated."""
    cells = [
        [c if isinstance(c, Text) else Text(c, style="dim" if k in dim else "") for k, c in pairs]
        for pairs in (list(enumerate(row)) for row in rows)
    ]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    for row in cells:
        for k, (cell, width) in enumerate(zip(row, widths, strict=True)):
            (cell.pad_left if k in right else cell.pad_right)(width - cell.cell_len)
    lines = [Text("  ").join(row) for row in cells]
    for line in lines:
        line.rstrip()
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _chosen(classes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the classes to show in their order: the least accurate, then those without samples."""
    ranked = sorted(classes, key=lambda c: (c["accuracy"] is None, c["accuracy"] or 0.0))
    kept = {id(one) for one in ranked[:LINES]}
    return [one for one in classes if id(one) in kept]


def _mistaken(confusion: Sequence[Sequence[Any]]) -> dict[Any, str]:
    """Return the most frequent wrong answer for each class, with its count."""
    wrong = sorted((row for row in confusion if row[0] != row[1]), key=lambda row: row[2])
    return {label: f"{_short(answer)} ({count})" for label, answer, count in wrong}


def _short(name: object) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= NAME else f"{text[: NAME - 1]}…"


def _bar(share: float, width: int) -> str:
    """Return a bar that fills a share of the width.

    >>> _bar(0.5, 5)
    '██▌  '
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return (BLOCKS[8] * full + (BLOCKS[rest] if rest else "")).ljust(width)


def _spark(values: Sequence[float], width: int, top: float) -> str:
    """Return a sparkline of at most `width` characters.

    >>> _spark([0, 50, 100, 100], 2, 100)
    '▃█'
    """
    count = min(width, len(values))
    edges = [len(values) * k // count for k in range(count + 1)] if count else []
    parts = [values[a:b] for a, b in pairwise(edges)]
    means = [sum(part) / len(part) / top for part in parts]
    return "".join(LEVELS[min(7, int(mean * 8))] for mean in means)


def _tone(accuracy: float | None) -> str:
    if accuracy is None:
        return ""
    return "red" if accuracy < 50 else "yellow" if accuracy < 80 else "green"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:+.3f}" if sign else f"{value:.4g}"
    return text.replace("-", "−")


def _ago(seconds: float) -> str:
    """Return an age in seconds as text.

    >>> _ago(0.4), _ago(42), _ago(150), _ago(9000)
    ('now', '42 s ago', '2 min ago', '2 h ago')
    """
    if seconds < 2:
        return "now"
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"
