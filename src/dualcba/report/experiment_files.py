"""The files of one experiment: tables as Markdown, LaTeX and CSV, figures as SVG and PNG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.result import Result
from dualcba.io import atomic_write
from dualcba.report.comparison import NEWEST, Served, measured, rows, serve, split_run
from dualcba.report.figures import registry as figures
from dualcba.report.figures import style
from dualcba.report.figures.style import Plot
from dualcba.report.gains import Gain, in_one_line
from dualcba.report.tables.csv import comma_separated, gain_records, score_records, seed_records
from dualcba.report.tables.latex import latex
from dualcba.report.tables.markdown import markdown
from dualcba.report.tables.model import Table
from dualcba.report.tables.scores import with_gains

FORMATS = ("svg", "png")
"""File formats of figures."""


def render(experiment: Experiment, results: list[Result], out: Path) -> list[Path]:
    """Write the experiment's files into a folder and return their paths.

    Columns and rows without results are left out and named in the Markdown file, as are figures
    that cannot be drawn, with the reason. Stale files of an earlier call are removed.
    """
    served = serve(experiment, results)
    if not any(s.results for s in served):
        raise ValueError(
            f"no result belongs to the experiment {experiment.name!r}, expected runs of its specs"
        )
    contents: dict[str, bytes] = {}
    plots: list[Plot] = []
    remarks: list[str] = []
    if experiment.figures:
        plots, remarks = figures.draw_all(experiment.figures, served, experiment.name)
        for plot in plots:
            for format in FORMATS:
                contents[f"{plot.name}.{format}"] = style.render(plot, format)
    there, not_run = split_run(served)
    contents |= _texts(experiment, there, plots, [*remarks, *not_run])
    stale = _stale(experiment.name, contents, out)
    paths = [_write(out / name, content) for name, content in contents.items()]
    for path in stale:
        path.unlink(missing_ok=True)
    return paths


def _stale(name: str, contents: Mapping[str, bytes], out: Path) -> list[Path]:
    """Return the tables and figures of an earlier call that are not among the new contents.

    Figures are found by the links in the earlier Markdown file, since names of other experiments
    may begin with the same text.
    """
    page = out / f"{name}.md"
    text = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    shown = re.findall(rf"\]\(({re.escape(name)}[^()/\\]*)\.svg\)", text)
    figures = [f"{plot}.{format}" for plot in shown for format in FORMATS]
    tables = [f"{name}{end}" for end in (".csv", "-seeds.csv", "-gains.csv", ".tex")]
    return [out / file for file in (*figures, *tables) if file not in contents]


def _texts(
    experiment: Experiment, served: list[Served], plots: list[Plot], remarks: list[str]
) -> dict[str, bytes]:
    name, scores = experiment.name, experiment.scores
    tables, gains = with_gains(served, scores) if scores else ([], [])
    head = [f"# {experiment.title}\n", *([f"{experiment.note}\n"] if experiment.note else [])]
    notes = [f"{line}\n" for line in (in_one_line(gains), *remarks) if line]
    shown = [f"![{plot.alt}]({plot.name}.svg)\n\n{plot.caption}\n" for plot in plots]
    texts = {f"{name}.md": "\n".join([*head, *map(markdown, tables), *shown, *notes])}
    texts |= table_files(name, experiment.title, tables, served, scores, gains) if tables else {}
    return {path: text.encode() for path, text in texts.items()}


def table_files(
    name: str,
    title: str,
    tables: Sequence[Table],
    served: Sequence[Served],
    scores: Sequence[str],
    gains: Sequence[Gain],
) -> dict[str, str]:
    """Return the contents of the table files by name: all scores and each seed as CSV, and LaTeX.

    LaTeX captions begin with the title, unless it equals the titles of the tables.
    """
    full = list(dict.fromkeys([*scores, *measured(served, NEWEST)]))
    of = "" if {s.entry.column for s in served} == {title} else title
    texts = {
        f"{name}.csv": comma_separated(score_records(rows(served, full))),
        f"{name}-seeds.csv": comma_separated(seed_records(served, full)),
        f"{name}.tex": "\n".join(latex(table, of) for table in tables),
    }
    return texts | ({f"{name}-gains.csv": comma_separated(gain_records(gains))} if gains else {})


def _write(path: Path, content: bytes) -> Path:
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return path
