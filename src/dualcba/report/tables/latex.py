"""Tables as LaTeX, with booktabs."""

from __future__ import annotations

from collections.abc import Iterable

from dualcba.report.tables.model import Strong, Table

LETTERS = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "²": "$^2$", "|": r"\textbar{}", "\u2007": r"\phantom{0}", "’": "'",
    "·": r"$\cdot$", "→": r"$\to$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "[": "{[}", "*": "{*}",  # at the start of a row, they would be arguments of the preceding \\
    **dict(zip(LETTERS, (rf"$\{n}$" for n in GREEK.split()), strict=True)),
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
