"""The report as one self-contained HTML file, with embedded figures and without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path

from dualcba.experiments.result import Result
from dualcba.experiments.store import contradictions, distinct, find_runs
from dualcba.io import atomic_write
from dualcba.report.figures.style import Plot, render
from dualcba.report.made_for import MadeFor, made_for
from dualcba.report.names import check_scores, count, slug
from dualcba.report.sections import Downloads, Fact, Section, report_sections
from dualcba.report.tables.html import escape, html_table
from dualcba.report.tables.model import Table

REPORT = "report.html"


@dataclass
class Anchors:
    """Unique names for the anchors of a page."""

    taken: set[str] = field(default_factory=set)

    def name(self, title: str) -> str:
        """Return an unused name, derived from a title.

        >>> anchors = Anchors()
        >>> anchors.name("Any-time, M = 100"), anchors.name("Any-time, M = 100")
        ('any-time-m-100', 'any-time-m-100-2')
        """
        stem = name = slug(title)
        number = 2
        while name in self.taken:
            name, number = f"{stem}-{number}", number + 1
        self.taken.add(name)
        return name


def write_report(
    *outs: Path,
    to: Path | None = None,
    asked: Sequence[str] = (),
    compare: Sequence[str] = (),
    tell: Callable[[str], object] | None = None,
) -> Path:
    """Write a report on all complete runs below folders and return its path.

    Parameters
    ----------
    outs
        folders of runs
    to
        the file to write; by default `report.html` in the folder, or in the current folder if there
        are several
    asked
        further scores to show
    compare
        methods to compare in pairs; by default all
    tell
        called with a line for each table that is left out, and with a line if runs are left out
        because they differ from the same runs in an earlier folder
    """
    check_scores(asked)
    if to is not None and to.is_dir():
        raise IsADirectoryError(f"{to} is a folder, expected a file to write, as {to / REPORT}")
    runs = find_runs(*outs)
    title = ", ".join(dict.fromkeys(out.resolve().name for out in outs))
    made = made_for(runs)
    page = make_page(distinct(runs.values()), title, made, asked, compare)
    path = to or (outs[0] / REPORT if len(outs) == 1 else Path(REPORT))
    try:
        with atomic_write(path) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        wanted = "a file that can be written, as --out"
        raise OSError(f"{path} cannot be written: {error.strerror}, expected {wanted}") from error
    if tell is not None:
        for line in (*made.left_out, *contradictions(runs)):
            tell(line)
    return path


def make_page(
    results: list[Result],
    title: str,
    made: MadeFor | None = None,
    asked: Sequence[str] = (),
    compare: Sequence[str] = (),
) -> str:
    """Return the report on results as HTML; `made` has the tables and sweeps they were made for."""
    facts, sections = report_sections(results, made, asked, compare)
    return page_of(title, _head(title, results), facts, sections)


def page_of(title: str, head: str, facts: Iterable[Fact], sections: list[Section]) -> str:
    """Return a page as HTML; `head` is HTML, all other text is escaped."""
    anchors = Anchors()
    names = [(anchors.name(s.title), [anchors.name(p.title) for p in s.parts]) for s in sections]
    body = [head, _facts(facts), _contents(sections, names)]
    for section, (name, parts) in zip(sections, names, strict=True):
        body.append(f'<section aria-labelledby="{name}">')
        body.append(_section(section, name, 2))
        for part, below in zip(section.parts, parts, strict=True):
            body.append(_section(part, below, 3) + _remarks(part))
        body.append(_remarks(section) + "</section>")
    css = (resources("dualcba.report") / "page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>dualcba: {escape(title)}</title>",
            f"<style>\n{css}</style>\n</head>\n<body>",
            *body,
            "</body>\n</html>\n",
        ]
    )


def _head(title: str, results: list[Result]) -> str:
    methods = len({r.method for r in results})
    seeds = len({r.seed for r in results})
    lead = f"{count(len(results), 'run')}, {count(methods, 'method')}, {count(seeds, 'seed')}"
    return (
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="lead">{lead}. Accuracies are in percent; ± is the half-width of the 95 % '
        "interval over seeds (Student’s t). Every run is evaluated twice: with the running "
        "statistics of batch normalisation (BN), and with statistics re-estimated from the memory "
        "(IBN).</p></header>"
    )


def _facts(facts: Iterable[Fact]) -> str:
    cells = "".join(
        f"<div><dt>{escape(f.name)}</dt><dd>{escape(f.value)}"
        f"<small>{escape(f.detail)}</small></dd></div>"
        for f in facts
    )
    return f'<dl class="facts">{cells}</dl>' if cells else ""


def _contents(sections: list[Section], names: list[tuple[str, list[str]]]) -> str:
    items = []
    for section, (name, parts) in zip(sections, names, strict=True):
        below = "".join(
            f'<li><a href="#{link}">{escape(part.title)}</a></li>'
            for part, link in zip(section.parts, parts, strict=True)
        )
        nested = f"<ul>{below}</ul>" if below else ""
        items.append(f'<li><a href="#{name}">{escape(section.title)}</a>{nested}</li>')
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _section(section: Section, name: str, level: int) -> str:
    lines = [f'<h{level} id="{name}">{escape(section.title)}</h{level}>']
    for item in section.items:
        if isinstance(item, Table):
            lines.append(html_table(item))
        elif isinstance(item, Plot):
            lines.append(figure(item))
        elif isinstance(item, Downloads):
            lines.append(_downloads(item))
        elif isinstance(item, dict):
            lines.append(_terms(item))
        elif isinstance(item, tuple):
            summary, *texts = item
            blocks = "".join(f"<pre>{escape(text)}</pre>" for text in texts)
            lines.append(f"<details><summary>{escape(summary)}</summary>{blocks}</details>")
        else:
            lines.append(f"<p>{escape(item)}</p>")
    return "\n".join(lines)


def _remarks(section: Section) -> str:
    text = " ".join(section.remarks)
    return f'<p class="remark">{escape(text)}</p>\n' if text else ""


def _terms(terms: dict[str, str]) -> str:
    pairs = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in terms.items())
    return f'<dl class="terms">{pairs}</dl>'


def _downloads(found: Downloads) -> str:
    """Return download links to files that are embedded in the page."""
    links = []
    for name, text in found.files.items():
        kind = "text/csv" if name.endswith(".csv") else "text/plain"
        data = b64encode(text.encode()).decode()
        href = f"data:{kind};charset=utf-8;base64,{data}"
        links.append(f'<a download="{escape(name)}" href="{href}">{escape(name)}</a>')
    return f'<p class="files">Files: {", ".join(links)}</p>'


def figure(plot: Plot) -> str:
    """Return a figure as HTML: an embedded SVG with alternative text and caption."""
    svg = b64encode(render(plot, "svg")).decode()
    alt, caption = escape(plot.alt), escape(plot.caption)
    return (
        f'<figure id="figure-{escape(plot.name)}"><div class="scroll" tabindex="0" '
        f'role="region" aria-label="{alt}"><img alt="{alt}" '
        f'src="data:image/svg+xml;base64,{svg}"></div><figcaption>{caption}</figcaption></figure>'
    )
