"""Tables as HTML."""

from __future__ import annotations

import html

from dualcba.report.tables.model import Column, Strong, Table


def html_table(table: Table) -> str:
    """Return a table in HTML, in a box that scrolls on narrow screens."""
    title = escape(str(table.title))
    lines = [f'<div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>']
    lines.append(f"<caption><span>{title}</span></caption><thead>")
    lines += [_group_heads(table)] if table.grouped else []
    heads = "".join(
        f'<th scope="col"{_class(column)}>{escape(column.title)}</th>' for column in table.columns
    )
    lines += [f"<tr>{heads}</tr>", "</thead><tbody>"]
    lines += [_row(table, row) for row in table.rows]
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return "\n".join([*lines, f"</tbody></table></div>{note}"])


def _group_heads(table: Table) -> str:
    heads = "".join(
        f'<th scope="colgroup" colspan="{size}">{escape(name)}</th>'
        if name
        else f'<td colspan="{size}"></td>'
        for name, size in table.groups
    )
    return f"<tr>{heads}</tr>"


def _row(table: Table, row: tuple[str, ...]) -> str:
    cells = "".join(
        f"<td{_class(column)}>{escape(cell)}</td>"
        for column, cell in zip(table.columns[1:], row[1:], strict=True)
    )
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _class(column: Column) -> str:
    return ' class="n"' if column.number else ""


def escape(text: str) -> str:
    """Return a text with HTML's special characters escaped, also valid in an attribute."""
    plain = html.escape(text, quote=True)
    return f"<strong>{plain}</strong>" if isinstance(text, Strong) else plain
