"""Tables as Markdown."""

from __future__ import annotations

from dualcba.report.tables.model import Strong, Table


def markdown(table: Table) -> str:
    """Return a table in Markdown, with columns aligned in the source."""
    heads = [escape(f"{c.group}, {c.title}" if c.group else c.title) for c in table.columns]
    lines = [heads, *([escape(cell) for cell in row] for row in table.rows)]
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
    title = f"**{escape(table.title)}**\n\n" if table.title else ""
    return f"{title}{text}\n" + (f"\n{escape(table.note)}\n" if table.note else "")


def escape(text: str) -> str:
    """Return a text with Markdown's special characters escaped."""
    plain = text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    return f"**{plain}**" if isinstance(text, Strong) else plain
