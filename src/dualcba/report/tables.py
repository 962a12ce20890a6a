"""Rows as CSV, Markdown, LaTeX and HTML."""

from __future__ import annotations

import csv
import dataclasses
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from dualcba.report.comparison import Cell, Measure, Row, Served, known, rows
from dualcba.report.gains import Gain, Gap, gains
from dualcba.report.names import MISSING, NORMS, score

WIDE = 3
"""With more scores than this a table shows ours and the paper's alone; the CSV has everything."""

PAGE = 5
"""So many scores stand beside each other then."""


class Strong(str):
    """A cell that is to stand out."""


@dataclass(frozen=True)
class Column:
    """The heading of a column, below the heading of its group."""

    title: str
    group: str = ""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Text in rows; the first cell of each names the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def number(x: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A number, or a dash where there is none; a true minus sign.

    >>> number(-1.26, sign=True), number(3.0, 2), number(None)
    ('−1.3', '3.00', '–')
    """
    if x is None:
        return MISSING
    return f"{x:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def spread(m: Measure | Gap | None, digits: int = 1, *, sign: bool = False) -> str:
    """Mean ± half-width; figure spaces keep the numbers of a column below each other.

    >>> spread(Measure(26.25, 4.04, 3)), spread(Measure(26.25, None, 1)), spread(None)
    ('26.2 ± \\u20074.0', '26.2', '–')
    """
    mean = number(None if m is None else m.mean, digits, sign=sign)
    if m is None or m.half is None:
        return mean
    half = f"{m.half:{digits + 3}.{digits}f}".replace(" ", "\u2007")
    return f"{mean} ± {half}"


def blocks(found: Sequence[Row], note: str = "") -> list[Table]:
    """One table per column of the experiment, with the paper's values where there are any."""
    tables = []
    for name in dict.fromkeys(row.column for row in found):
        here = [r for r in found if r.column == name]
        wide = len(here[0].cells) > WIDE
        parts = _parts(here) if wide else [here]
        for number, part in enumerate(parts, 1):
            of = f", part {number} of {len(parts)}" if len(parts) > 1 else ""
            tables.append(_block(name + of, part, note, wide=wide))
    return tables


def _parts(found: list[Row]) -> list[list[Row]]:
    """The same rows by a few scores at a time, as many as a page is wide."""
    starts = range(0, len(found[0].cells), PAGE)
    return [[dataclasses.replace(r, cells=r.cells[k : k + PAGE]) for r in found] for k in starts]


def with_gains(served: Sequence[Served], scores: Sequence[str]) -> tuple[list[Table], list[Gain]]:
    """For each column a table of scores, and below it what Dual-CBA gains there; all gains."""
    tables, found = [], []
    for column in dict.fromkeys(s.entry.column for s in served):
        part = [s for s in served if s.entry.column == column]
        here = [g for g in gains(part) if g.adaptors.seeds] if "acc" in scores else []
        tables += blocks(known(rows(part, scores)))
        tables += [gain_table(here, column)] if here else []
        found += here
    if found:
        tables[-1] = dataclasses.replace(tables[-1], note=GAIN_NOTE)
    return tables, found


def _block(title: str, rows: list[Row], note: str, *, wide: bool) -> Table:
    scores = [c.score for c in rows[0].cells]
    paper = any(c.paper is not None for row in rows for c in row.cells)
    columns = [Column("method", number=False), Column("seeds")]
    columns += [Column("norm", number=False)] if paper else []
    for name in scores:
        parts = ["ours"] if (wide and paper) or score(name).cost else ["BN", "IBN"]
        parts += ["paper"] * paper + ["Δ"] * (paper and not wide)
        columns += [Column(part, score(name).arrowed) for part in parts]
    lines = []
    for row in rows:
        line = [row.row, str(len(row.seeds) or MISSING)]
        line += [NORMS[row.norm]] if paper else []
        line += [text for cell in row.cells for text in _texts(cell, paper, wide)]
        lines.append(tuple(line))
    return Table(title, tuple(columns), tuple(lines), note)


def _texts(cell: Cell, paper: bool, wide: bool) -> list[str]:
    what = score(cell.score)
    far = Strong if cell.within is False else str
    if wide and paper:
        return [far(spread(cell.ours, what.digits)), number(cell.paper, 2)]
    ours = [cell.ours] if what.cost else [cell.bn, cell.ibn]
    texts = [spread(m, what.digits) for m in ours]
    gap = number(cell.difference, what.digits, sign=True)
    given = number(cell.paper, what.digits if what.cost else 2)
    return [*texts, given, far(gap)] if paper else texts


GAIN_NOTE = (
    "Gain on common seeds. Over the base under BN, as the paper compares them; of that, the part "
    "that IBN gives the base alone; and over the base under IBN, which is what the adaptors give. "
    "p: paired t test, below 0.05 stands out."
)


def gain_table(found: Sequence[Gain], where: str) -> Table:
    """Each Dual-CBA against its base method: gains with intervals, and p."""
    whole, adaptors = "IBN, over base BN", "IBN, over base IBN"
    columns = (
        Column("Dual-CBA over base", number=False), Column("seeds"),
        Column("gain", whole), Column("p", whole), Column("gain", "of it IBN’s"),
        Column("gain", adaptors), Column("p", adaptors),
        Column("gain", "both BN"), Column("p", "both BN"),
    )  # fmt: skip
    lines = []
    for g in found:
        parts = [*_gap(g.whole), spread(g.ibn, sign=True), *_gap(g.adaptors), *_gap(g.bn)]
        lines.append((g.pair, str(g.adaptors.seeds or MISSING), *parts))
    return Table(f"Gain in {score(found[0].score).title}, {where}", columns, tuple(lines))


def _gap(gap: Gap) -> list[str]:
    return [spread(gap, sign=True), p_value(gap.p)]


def p_value(p: float | None) -> str:
    """A p as it is printed; one below 0.05 stands out.

    >>> p_value(0.0004), p_value(0.2), p_value(None), isinstance(p_value(0.01), Strong)
    ('< 0.001', '0.200', '–', True)
    """
    text = MISSING if p is None else "< 0.001" if p < 0.001 else number(p, 3)
    return Strong(text) if p is not None and p < 0.05 else text


def gains_comma_separated(found: Iterable[Gain]) -> str:
    """One line per Dual-CBA and base, numbers in full; an empty field where there is none."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("whole", "ibn", "adaptors", "bn")
    heads = [f"{part}_{number}" for part in parts for number in ("mean", "half", "p")]
    writer.writerow(["dual", "base", "column", "score", "seeds", *heads])
    for g in found:
        numbers = [x for part in parts for x in dataclasses.astuple(getattr(g, part))[1:]]
        writer.writerow([g.dual, g.base, g.column, g.score, g.adaptors.seeds, *numbers])
    return out.getvalue()


def comma_separated(rows: Iterable[Row]) -> str:
    """One line per row and score, numbers in full; an empty field where there is none."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = [f"{norm}_{part}" for norm in NORMS for part in ("mean", "half", "seeds")]
    writer.writerow(
        ["row", "column", "score", *parts, "paper_norm", "paper", "difference", "within"]
    )
    for row in rows:
        for cell in row.cells:
            ours = [x for m in (cell.bn, cell.ibn) for x in _numbers(m)]
            tail = [cell.paper, cell.difference, cell.within]
            writer.writerow([row.row, row.column, cell.score, *ours, row.norm, *tail])
    return out.getvalue()


def _numbers(m: Measure | None) -> tuple[float | None, float | None, int]:
    return (None, None, 0) if m is None else (m.mean, m.half, m.seeds)


def markdown(table: Table) -> str:
    """A table in Markdown, its columns aligned in the source too."""
    heads = [_md(f"{c.group}, {c.title}" if c.group else c.title) for c in table.columns]
    lines = [heads, *([_md(cell) for cell in row] for row in table.rows)]
    widths = [max(3, *(len(line[k]) for line in lines)) for k in range(len(heads))]
    rule = [
        "-" * (width - 1) + ":" if column.number else "-" * width
        for width, column in zip(widths, table.columns, strict=True)
    ]
    body = [
        [
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        for line in lines
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in [body[0], rule, *body[1:]])
    title = f"**{_md(table.title)}**\n\n" if table.title else ""
    return f"{title}{text}\n" + (f"\n{_md(table.note)}\n" if table.note else "")


def _md(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    return f"**{plain}**" if isinstance(text, Strong) else plain


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "Δ": r"$\Delta$", "²": "$^2$", "\u2007": r"\phantom{0}", "’": "'",
    "·": r"$\cdot$", "ν": r"$\nu$", "ω": r"$\omega$", "θ": r"$\theta$", "φ": r"$\phi$",
    "→": r"$\to$",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Text as LaTeX takes it.

    >>> escape_latex("50 % of ER_1 ± 2")
    '50 \\\\% of ER\\\\_1 $\\\\pm$ 2'
    """
    plain = "".join(LATEX.get(letter, letter) for letter in text)
    return rf"\textbf{{{plain}}}" if isinstance(text, Strong) else plain


def latex(table: Table, of: str = "") -> str:
    """A table in LaTeX, with booktabs; its caption opens with what it is a table of."""
    align = "".join("r" if column.number else "l" for column in table.columns)
    title = f"{of}. {table.title}" if of else table.title
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(title)}}}"]
    lines += [rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    groups = _groups(table.columns)
    if any(name for name, _ in groups):
        lines.append(_latex_groups(groups))
    lines += [_latex_line([c.title for c in table.columns]), r"\midrule"]
    lines += [_latex_line(row) for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\footnotesize {escape_latex(table.note)}"] if table.note else []
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def _latex_groups(groups: list[tuple[str, int]]) -> str:
    heads, rules, start = [], [], 1
    for name, size in groups:
        text = rf"\multicolumn{{{size}}}{{c}}{{{escape_latex(name)}}}" if name else "&" * (size - 1)
        heads.append(text)
        rules += [rf"\cmidrule(lr){{{start}-{start + size - 1}}}"] if name else []
        start += size
    return " & ".join(heads) + r" \\" + "\n" + "".join(rules)


def _groups(columns: Iterable[Column]) -> list[tuple[str, int]]:
    """Runs of columns below one heading."""
    out: list[tuple[str, int]] = []
    for column in columns:
        if out and out[-1][0] == column.group:
            out[-1] = column.group, out[-1][1] + 1
        else:
            out.append((column.group, 1))
    return out


def escape_html(text: str) -> str:
    """Text as HTML takes it, in an attribute too."""
    plain = html.escape(text, quote=True)
    return f"<strong>{plain}</strong>" if isinstance(text, Strong) else plain


def as_html(table: Table) -> str:
    """A table in HTML, in a box of its own that scrolls where the screen is narrow."""
    title = escape_html(str(table.title))
    lines = [f'<div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>']
    lines.append(f"<caption><span>{title}</span></caption><thead>")
    groups = _groups(table.columns)
    if any(name for name, _ in groups):
        heads = "".join(
            f'<th scope="colgroup" colspan="{size}">{escape_html(name)}</th>'
            if name
            else f'<td colspan="{size}"></td>'
            for name, size in groups
        )
        lines.append(f"<tr>{heads}</tr>")
    heads = "".join(
        f'<th scope="col"{_class(column)}>{escape_html(column.title)}</th>'
        for column in table.columns
    )
    lines += [f"<tr>{heads}</tr>", "</thead><tbody>"]
    for row in table.rows:
        cells = "".join(
            f"<td{_class(column)}>{escape_html(cell)}</td>"
            for column, cell in zip(table.columns[1:], row[1:], strict=True)
        )
        lines.append(f'<tr><th scope="row">{escape_html(row[0])}</th>{cells}</tr>')
    note = f'<p class="note">{escape_html(table.note)}</p>' if table.note else ""
    return "\n".join([*lines, f"</tbody></table></div>{note}"])


def _class(column: Column) -> str:
    return ' class="n"' if column.number else ""
