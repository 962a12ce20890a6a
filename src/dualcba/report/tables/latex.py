"""Tables as LaTeX, with booktabs."""

from __future__ import annotations

from collections.abc import Iterable

from dualcba.report.tables.model import Strong, Table

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "Δ": r"$\Delta$", "²": "$^2$", "\u2007": r"\phantom{0}", "’": "'",
    "·": r"$\cdot$", "ν": r"$\nu$", "ω": r"$\omega$", "θ": r"$\theta$", "φ": r"$\phi$",
    "→": r"$\to$",
}  # fmt: skip


def latex(table: Table, of: str = "") -> str:
    """Return a table in LaTeX; its caption begins with `of`."""
    align = "".join("r" if column.number else "l" for column in table.columns)
    title = f"{of}. {table.title}" if of else table.title
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape(title)}}}"]
    lines += [rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    lines += [_group_line(table)] if table.grouped else []
    lines += [_line(c.title for c in table.columns), r"\midrule"]
    lines += [_line(row) for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\footnotesize {escape(table.note)}"] if table.note else []
    return "\n".join([*lines, r"\end{table}", ""])


def _line(cells: Iterable[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def _group_line(table: Table) -> str:
    heads, rules, start = [], [], 1
    for name, size in table.groups:
        text = rf"\multicolumn{{{size}}}{{c}}{{{escape(name)}}}" if name else "&" * (size - 1)
        heads.append(text)
        rules += [rf"\cmidrule(lr){{{start}-{start + size - 1}}}"] if name else []
        start += size
    return " & ".join(heads) + r" \\" + "\n" + "".join(rules)


def escape(text: str) -> str:
    """Return a text with LaTeX's special characters escaped.

    >>> escape("50 % of ER_1 ± 2")
    '50 \\\\% of ER\\\\_1 $\\\\pm$ 2'
    """
    plain = "".join(LATEX.get(letter, letter) for letter in text)
    return rf"\textbf{{{plain}}}" if isinstance(text, Strong) else plain
