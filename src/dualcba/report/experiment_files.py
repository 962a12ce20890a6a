"""The files of one experiment: tables as Markdown, LaTeX and CSV, figures as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.result import Result
from dualcba.io import atomic_write
from dualcba.report.comparison import NEWEST, Served, measured, rows, serve
from dualcba.report.figures import registry as figures
from dualcba.report.figures import style
from dualcba.report.figures.style import Plot
from dualcba.report.gains import Gain, in_one_line
from dualcba.report.tables.csv import comma_separated, gain_records, score_records, seed_records
from dualcba.report.tables.latex import latex
from dualcba.report.tables.markdown import markdown
from dualcba.report.tables.model import Table
from dualcba.report.tables.scores import with_gains


def render(experiment: Experiment, results: list[Result], out: Path) -> list[Path]:
    """Write the experiment's files into a folder and return their paths.

    A figure that cannot be drawn is left out; the Markdown file says why.
    """
    served = serve(experiment, results)
    done = {s.entry.column for s in served if s.results}
    if not done:
        raise ValueError(
            f"no result serves the experiment {experiment.name!r}, expected runs of its specs"
        )
    contents: dict[str, bytes] = {}
    plots: list[Plot] = []
    remarks: list[str] = []
    if experiment.figures:
        plots, remarks = figures.draw_all(experiment.figures, served, experiment.name)
        for plot in plots:
            for format in ("svg", "png"):
                contents[f"{plot.name}.{format}"] = style.render(plot, format)
    absent = dict.fromkeys(s.entry.column for s in served if s.entry.column not in done)
    remarks += [f"Not run: {'; '.join(absent)}."] if absent else []
    served = [s for s in served if s.entry.column in done]
    contents |= _texts(experiment, served, plots, remarks)
    return [_write(out / name, content) for name, content in contents.items()]


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
    """Return tables as the texts of files: all scores and each seed as CSV, the tables as LaTeX."""
    full = [*scores, *measured(served, NEWEST)]
    texts = {
        f"{name}.csv": comma_separated(score_records(rows(served, full))),
        f"{name}-seeds.csv": comma_separated(seed_records(served, full)),
        f"{name}.tex": "\n".join(latex(table, title) for table in tables),
    }
    return texts | ({f"{name}-gains.csv": comma_separated(gain_records(gains))} if gains else {})


def _write(path: Path, content: bytes) -> Path:
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return path
