"""The tables that `dualcba run` prints at its end: mean and interval over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dualcba.experiments.result import Result
from dualcba.options import recipe_of
from dualcba.report.comparison import Cell, Served, further, measured, rows
from dualcba.report.names import STATISTICS, method_title, score_info, spread_over
from dualcba.report.results import collections, notes, recipe_title
from dualcba.report.tables.layouts import portions
from dualcba.report.tables.model import Column, Table, short_spread, text_columns

SCORES = ("acc", "fm", "acc_auc")
LEGEND = (
    "ACC: mean accuracy over all tasks at the end. FM: forgetting, the mean drop of a task's "
    "accuracy from its best to the end. AUC: mean accuracy over the whole stream. Newest task: "
    "mean accuracy of a task right after its end, without the first task. BN: predictions with the "
    "running statistics of batch normalisation; IBN: with statistics re-estimated from the memory."
)
"""Explanation of the scores and statistics, printed below the table."""

ARRIVED = ("newest", "prequential")
"""Scores of the newest samples, shown if a run has them."""


def summary_layouts(
    results: Sequence[Result], asked: Sequence[str] = ()
) -> list[Iterator[list[Table]]]:
    """Return the layouts of the scores of each dataset, setting and buffer, widest first.

    `asked` names further scores to show.
    """
    return [_layouts(collection.served, asked) for collection in collections(results)]


def legend(results: Sequence[Result], asked: Sequence[str] = ()) -> str:
    """Return the explanation of all scores and statistics in the tables."""
    shown = dict.fromkeys(n for c in collections(results) for n in _scores(c.served, asked))
    others = [score_info(name) for name in shown if name not in (*SCORES, "newest")]
    return " ".join([LEGEND, *(f"{score.title}: {score.meaning}." for score in others)])


def _layouts(served: Sequence[Served], asked: Sequence[str]) -> Iterator[list[Table]]:
    scores = _scores(served, asked)
    return ([summary_table(served, part) for part in parts] for parts in portions(scores))


def _scores(served: Sequence[Served], asked: Sequence[str]) -> list[str]:
    """Return the scores that the table of a collection shows."""
    return list(dict.fromkeys([*SCORES, *measured(served, ARRIVED), *further(served, asked)]))


def summary_table(served: Sequence[Served], scores: Sequence[str]) -> Table:
    """Return a table with a row per method; scores are in percent."""
    first, note = served[0].results[0].spec, notes(served[0].results[0])
    pairs = [(s, name) for name in scores for s in STATISTICS if s == "bn" or not _is_fixed(name)]
    heads = [Column(_head(*pair), score_info(pair[1]).arrowed) for pair in pairs]
    found = zip(served, rows(served, scores), strict=True)
    lines = [(_name(s), *(text for cell in row.cells for text in _texts(cell))) for s, row in found]
    over = spread_over(*(len(s.results) for s in served))
    return Table(
        f"{first.dataset}, {first.setting}, buffer {first.buffer}{note}",
        (*text_columns("method"), *heads),
        tuple(lines),
        f"percent; {over}",
    )


def _texts(cell: Cell) -> list[str]:
    values = [cell.bn] if _is_fixed(cell.score) else [cell.bn, cell.ibn]
    return [short_spread(value, score_info(cell.score).digits) for value in values]


def _is_fixed(score: str) -> bool:
    """Return whether a score does not depend on the statistics."""
    return score_info(score).fixed


def _head(statistics: str, score: str) -> str:
    return "" if _is_fixed(score) else STATISTICS[statistics]


def _name(served: Served) -> str:
    """Return the method's name on the command line, and the fields that tell it apart."""
    method, row = served.entry.method, served.entry.row
    recipe = recipe_of(served.entry.fields)
    if recipe is not None and row.startswith(title := recipe_title(*recipe)):
        return f"{recipe[0]} ({method})" + row.removeprefix(title)
    return method + row.removeprefix(method_title(method))
