"""The summary of a model: a table by class, and the HTML report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.folders.ledger import BROKEN, KNOWN, accuracy
from dualcba.folders.model import REPORT
from dualcba.folders.session import Session, named
from dualcba.io import atomic_write
from dualcba.report.figures.style import BLUE, Plot, few_ticks, grid, new_figure, styled
from dualcba.report.html import page_of
from dualcba.report.names import count
from dualcba.report.sections import Fact, Section
from dualcba.report.tables.html import escape
from dualcba.report.tables.model import Column, Table, number, text_columns

WINDOW = 200
"""Number of images for the latest accuracy."""

Answers = Sequence[tuple[str, str | None]]

LATEST = 50
"""Number of images for the latest accuracy of a class."""

NOTE = (
    "accuracy: percentage of images predicted correctly before they were learnt; "
    f"latest: over the last {LATEST} images of a class, and the last {WINDOW} images of all classes"
)


@dataclass(frozen=True)
class ClassRow:
    """The numbers of one class, or of all."""

    name: str
    seen: int
    accuracy: float | None
    latest: float | None
    memory: int


def class_rows(session: Session) -> list[ClassRow]:
    """Return a row per class in order of arrival, and a row for all classes."""
    answers, memory = session.ledger.answers, session.memory
    by_class: dict[str, list[tuple[str, str | None]]] = {}
    for answer in answers:
        by_class.setdefault(answer[0], []).append(answer)
    rows = [_row(name, own, LATEST, memory[name]) for name, own in by_class.items()]
    return [*rows, _row("all", answers, WINDOW, memory.total())]


def _row(name: str, answers: Answers, latest: int, memory: int) -> ClassRow:
    return ClassRow(name, len(answers), accuracy(answers), accuracy(answers[-latest:]), memory)


def class_table(rows: Sequence[ClassRow], title: str = "") -> Table:
    """Return the rows as a table."""
    titles = ("seen", "accuracy", "latest", "in memory")
    cells = [
        (named(r.name), str(r.seen), number(r.accuracy), number(r.latest), str(r.memory))
        for r in rows
    ]
    columns = (*text_columns("class"), *(Column(title) for title in titles))
    return Table(title, columns, tuple(cells))


def closing_data(session: Session) -> dict[str, Any]:
    """Return what `dualcba learn --json` prints."""
    *classes, total = class_rows(session)
    ledger = session.ledger
    return {
        "model": str(session.model),
        "seen": total.seen,
        "learnt_now": session.learnt,
        "accuracy": total.accuracy,
        "latest": total.latest,
        "memory": total.memory,
        "known": ledger.count(KNOWN),
        "broken": ledger.count(BROKEN),
        "relabelled": ledger.relabelled,
        "classes": [
            {"class": r.name} | {k: getattr(r, k) for k in ("seen", "accuracy", "latest", "memory")}
            for r in classes
        ],
    }


def remarks(session: Session) -> list[str]:
    """Return remarks on files that were not learnt as usual, a line for each kind."""
    ledger = session.ledger
    again = "learnt under both"
    counts = (
        (ledger.count(KNOWN), "file has", "files have", "the content of an image learnt before"),
        (ledger.count(BROKEN), "file was", "files were", "left out: not a complete image"),
        (ledger.relabelled, "image was", "images were", f"in the folders of two classes: {again}"),
    )
    return [f"{n} {one if n == 1 else more} {what}" for n, one, more, what in counts if n]


# ---------------------------------------------------------------------- the page


def write_report(session: Session) -> Path:
    """Write the report on a model into its folder, and return its path."""
    rows = class_rows(session)
    total, spec = rows[-1], session.spec
    assert spec is not None
    shown = {k: named(str(v)) for k, v in vars(spec).items() if v != {}}
    title = named(Path(spec.folder).name)
    lead = f"{count(total.seen, 'image')}, learnt one batch at a time. Classes: {len(rows) - 1}."
    head = f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'
    facts = [
        Fact("accuracy before learning", f"{number(total.accuracy)} %", "over all images"),
        Fact("latest accuracy", f"{number(total.latest)} %", f"over the last {WINDOW} images"),
    ]
    said = [f"{remark}." for remark in remarks(session)]
    sections = [
        Section("Classes", [class_table(rows, "By class"), _sentence(NOTE), *said]),
        Section("Accuracy over time", [_curve(session.ledger.answers)]),
        Section("Confusions", [_confusions(session.ledger.answers[-5 * WINDOW :])]),
        Section("Model", [shown]),
    ]
    with atomic_write(session.model / REPORT) as draft:
        draft.write_text(page_of(title, head, facts, sections), encoding="utf-8")
    return session.model / REPORT


def _curve(answers: Answers) -> Plot:
    """Return the moving average of the accuracy before learning."""
    window = max(1, min(WINDOW, len(answers) // 5))
    right = [a == b for a, b in answers]
    at = range(window, len(right) + 1, max(1, len(right) // 500))
    values = [100 * sum(right[k - window : k]) / window for k in at]
    with styled():
        figure, [[ax]] = new_figure()
        ax.plot(list(at), values, color=BLUE)
        ax.set_xlabel("images learnt")
        ax.set_ylabel("accuracy, %")
        ax.set_ylim(0, 100)
        grid(ax)
        few_ticks(ax, 6)
    caption = f"Accuracy of predictions before learning, averaged over {window} images"
    return Plot("accuracy", caption, caption, figure)


def _confusions(answers: Answers) -> Table | str:
    """Return the most frequent wrong predictions among the latest images."""
    wrong = Counter((label, said) for label, said in answers if said not in (None, label))
    rows = [(named(a), named(str(b)), str(n)) for (a, b), n in wrong.most_common(10)]
    if not rows:
        return "No wrong predictions among the latest images."
    columns = (*text_columns("class", "prediction"), Column("images"))
    note = f"the most frequent ones among the last {count(len(answers), 'image')}"
    return Table("Wrong predictions", columns, tuple(rows), note)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
