"""The data model of tables, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dualcba.report.comparison import Measure
from dualcba.report.gains import Gap
from dualcba.report.names import MISSING


class Strong(str):
    """The text of a cell that is emphasised."""


@dataclass(frozen=True)
class Column:
    """The heading of a column, and that of its group above it."""

    title: str
    group: str = ""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of a row is its name."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings of groups of neighbouring columns, each with its number of columns."""
        out: list[tuple[str, int]] = []
        for column in self.columns:
            if out and out[-1][0] == column.group:
                out[-1] = column.group, out[-1][1] + 1
            else:
                out.append((column.group, 1))
        return out

    @property
    def grouped(self) -> bool:
        """Whether any group has a heading."""
        return any(column.group for column in self.columns)


def text_columns(*titles: str) -> tuple[Column, ...]:
    """Return columns of text."""
    return tuple(Column(title, number=False) for title in titles)


def number(x: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return a number with a true minus sign, or a dash for None.

    >>> number(-1.26, sign=True), number(3.0, 2), number(None)
    ('−1.3', '3.00', '–')
    """
    if x is None:
        return MISSING
    return f"{x:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def spread(m: Measure | Gap | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return mean ± half-width; figure spaces align the numbers of a column.

    >>> spread(Measure(26.25, 4.04, 3)), spread(Measure(26.25, None, 1)), spread(None)
    ('26.2 ± \\u20074.0', '26.2', '–')
    """
    mean = number(None if m is None else m.mean, digits, sign=sign)
    if m is None or m.half is None:
        return mean
    half = f"{m.half:{digits + 3}.{digits}f}".replace(" ", "\u2007")
    return f"{mean} ± {half}"


def plain_spread(m: Measure | None, digits: int = 1) -> str:
    """Return mean ± half-width with plain spaces, or the mean with "(1 seed)".

    >>> plain_spread(Measure(26.25, 4.04, 3)), plain_spread(Measure(26.31, None, 1))
    ('26.2 ± 4.0', '26.3 (1 seed)')
    """
    if m is None:
        return MISSING
    half = " (1 seed)" if m.half is None else f" ± {m.half:.{digits}f}"
    return number(m.mean, digits) + half


def short_spread(m: Measure | Gap | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return mean ± half-width without spaces, for a terminal.

    >>> short_spread(Measure(26.25, 4.04, 3)), short_spread(None)
    ('26.2±4.0', '–')
    """
    mean = number(None if m is None else m.mean, digits, sign=sign)
    return mean if m is None or m.half is None else f"{mean}±{m.half:.{digits}f}"


def p_value(p: float | None) -> str:
    """Return a p value as text; one below 0.05 is emphasised.

    >>> p_value(0.0004), p_value(0.2), p_value(None), isinstance(p_value(0.01), Strong)
    ('< 0.001', '0.200', '–', True)
    """
    text = MISSING if p is None else "< 0.001" if p < 0.001 else number(p, 3)
    return Strong(text) if p is not None and p < 0.05 else text


def fields(values: Iterable[object]) -> tuple[str, ...]:
    """Return values as text with full precision; None becomes an empty text.

    >>> fields([1 / 3, None, True])
    ('0.3333333333333333', '', 'True')
    """
    return tuple("" if value is None else str(value) for value in values)
