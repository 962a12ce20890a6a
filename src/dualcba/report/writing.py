"""The files of one experiment: its tables in three formats, its figures in two."""

from __future__ import annotations

from pathlib import Path

from dualcba.experiments.catalog import Experiment
from dualcba.files import whole
from dualcba.report import figures, style
from dualcba.report.comparison import Result, Row, rows, serve
from dualcba.report.tables import blocks, comma_separated, latex, markdown


def render(experiment: Experiment, results: list[Result], out: Path) -> list[Path]:
    """Write the experiment's files into a folder, each whole or not at all; gives their paths.

    A figure that cannot be drawn is left out; the Markdown file says why.
    """
    served = serve(experiment, results)
    if not any(s.results for s in served):
        raise ValueError(
            f"no result serves the experiment {experiment.name!r}, expected runs of its specs"
        )
    contents: dict[str, bytes] = {}
    remarks: list[str] = []
    if experiment.figure:
        plots, remarks = figures.draw(experiment.figure, served, experiment.name)
        for plot in plots:
            for format in ("svg", "png"):
                contents[f"{plot.name}.{format}"] = style.render(plot, format)
    contents |= _texts(experiment, rows(served, experiment.scores), remarks)
    return [_write(out / name, content) for name, content in contents.items()]


def _texts(experiment: Experiment, found: list[Row], remarks: list[str]) -> dict[str, bytes]:
    tables = blocks(found) if experiment.scores else []
    head = [f"# {experiment.title}\n", *([f"{experiment.note}\n"] if experiment.note else [])]
    notes = [f"{line}\n" for line in remarks]
    texts = {"md": "\n".join([*head, *map(markdown, tables), *notes])}
    if tables:
        texts |= {"csv": comma_separated(found), "tex": "\n".join(map(latex, tables))}
    return {f"{experiment.name}.{end}": text.encode() for end, text in texts.items()}


def _write(path: Path, content: bytes) -> Path:
    with whole(path) as draft:
        draft.write_bytes(content)
    return path
