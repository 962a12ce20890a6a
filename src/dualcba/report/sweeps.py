"""The results of a sweep: a trial per combination of options, best first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dualcba.experiments.paper.catalogue import Entry
from dualcba.experiments.result import Result
from dualcba.experiments.sweep import LOWER_IS_BETTER, METHOD_OPTION, Sweep
from dualcba.report.commands import command
from dualcba.report.comparison import Measure, Served, measure
from dualcba.report.names import MISSING, STATISTICS, method_title, score_info, spread_over
from dualcba.report.results import Grouping, dataset_title, protocol_note, validation_note
from dualcba.report.tables.layouts import portions
from dualcba.report.tables.model import Column, Strong, Table, short_spread, text_columns

SCORES = ("acc", "fm", "acc_auc")
"""Scores to show in addition to the one that ranks the trials."""


@dataclass(frozen=True)
class Trial:
    """The runs of one method at one point of a sweep; they differ only by seed."""

    method: str
    values: tuple[Any, ...]
    """Values of the swept options in order; None if the method lacks the option."""

    results: tuple[Result, ...]
    score: Measure | None

    def named(self, sweep: Sweep) -> str:
        """Return the values of the swept options as text."""
        pairs = zip(shown_options(sweep), self.values, strict=True)
        return ", ".join(f"{title(name)} {value}" for name, value in pairs if value is not None)

    def test_command(self) -> str:
        """Return the command that repeats the runs, scored on the test data."""
        first = self.results[0].fields | {"validation": 0.0}
        return command(first, [result.seed for result in self.results])

    def served(self, sweep: Sweep) -> Served:
        """Return the runs as one curve of a figure."""
        row = ", ".join(filter(None, (method_title(self.method), self.named(sweep))))
        given = {k: v for k, v in self.results[0].fields.items() if k != "seed"}
        return Served(Entry(row, "", given, sweep.statistics, {}), self.results)


def shown_options(sweep: Sweep) -> list[str]:
    """Return the swept options without the method, which is always shown."""
    return [name for name in sweep.varied if name != "method"]


def title(option: str) -> str:
    """Return the name of an option in a table.

    >>> title("adaptor_lr"), title("method_options.alpha")
    ('adaptor lr', 'alpha')
    """
    return option.removeprefix(METHOD_OPTION).replace("_", " ")


def trials(results: Iterable[Result], sweep: Sweep) -> list[Trial]:
    """Return the trials of a sweep, best first; trials without the score come last."""
    ordered = sorted(results, key=lambda result: result.seed)
    grouping = Grouping(ordered)
    groups: dict[Hashable, list[Result]] = {}
    for result in ordered:
        groups.setdefault(grouping.key(result), []).append(result)
    found = [_trial(group, sweep) for group in groups.values()]
    sign = 1 if sweep.score in LOWER_IS_BETTER else -1
    return sorted(found, key=lambda t: (t.score is None, sign * (t.score.mean if t.score else 0)))


def _trial(group: Sequence[Result], sweep: Sweep) -> Trial:
    values = tuple(_value(group[0], name) for name in shown_options(sweep))
    score = measure(group, sweep.statistics, sweep.score)
    return Trial(group[0].method, values, tuple(group), score)


def _value(result: Result, name: str) -> Any:
    if name.startswith(METHOD_OPTION):
        return (result.fields.get("method_options") or {}).get(name.removeprefix(METHOD_OPTION))
    return result.fields.get(name)


def best_of_each(found: Sequence[Trial]) -> list[Trial]:
    """Return the best trial of each method that has the score, best method first."""
    best: dict[str, Trial] = {}
    for trial in found:
        if trial.score is not None:
            best.setdefault(trial.method, trial)
    return list(best.values())


def sweep_title(sweep: Sweep, found: Sequence[Trial]) -> str:
    """Return a heading, such as 'Sweep over buffer and lr: Digits, online'."""
    names = [title(name) for name in sweep.varied]
    over = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    shared = _shared(sweep, [result for trial in found for result in trial.results])
    return f"Sweep over {over}" + (f": {', '.join(shared)}" if shared else "")


def _shared(sweep: Sweep, results: Sequence[Result]) -> list[str]:
    """Return dataset, setting, buffer and protocol as text, each if all runs share it."""
    texts: dict[str, Callable[[Result], str]] = {
        "dataset": dataset_title,
        "setting": lambda result: result.spec.setting,
        "buffer": lambda result: f"M = {result.spec.buffer}",
        "protocol": lambda result: protocol_note(result).removeprefix(", "),
        "real_time": lambda result: "real time" if result.fields.get("real_time") else "",
    }
    values = [set(map(text, results)) for name, text in texts.items() if name not in sweep.varied]
    return [value for (value, *others) in values if value and not others]


def sweep_layouts(found: Sequence[Trial], sweep: Sweep, asked: int = 0) -> Iterator[list[Table]]:
    """Yield layouts of the scores of a sweep, widest first, each with one or more tables."""
    for parts in portions(list(dict.fromkeys((sweep.score, *SCORES)))):
        yield [sweep_table(found, sweep, asked, part) for part in parts]


def sweep_table(
    found: Sequence[Trial], sweep: Sweep, asked: int = 0, scores: Sequence[str] = ()
) -> Table:
    """Return a table with a row per trial, best first; the best of each method is marked.

    `asked` is the number of runs of the whole sweep; the note says if some are not complete.
    `scores` are by default the one that ranks the trials and `SCORES`.
    """
    best = best_of_each(found)
    scores = scores or list(dict.fromkeys((sweep.score, *SCORES)))
    heads = [Column(s, score_info(name).arrowed) for name in scores for s in STATISTICS.values()]
    options = [Column(title(name)) for name in shown_options(sweep)]
    lines = []
    for trial in found:
        pairs = [(statistics, name) for name in scores for statistics in STATISTICS]
        numbers = [short_spread(measure(trial.results, *pair)) for pair in pairs]
        values = [MISSING if value is None else str(value) for value in trial.values]
        name = Strong(f"{trial.method} *") if trial in best else trial.method
        lines.append((name, *values, *numbers))
    return Table(
        sweep_title(sweep, found),
        (*text_columns("method"), *options, *heads),
        tuple(lines),
        _incomplete(found, asked) + _note(found, sweep),
    )


def _incomplete(found: Sequence[Trial], asked: int) -> str:
    complete = sum(len(trial.results) for trial in found)
    lacking = complete < asked
    return f"{complete} of {asked} runs are complete; the best may change; " if lacking else ""


def _note(found: Sequence[Trial], sweep: Sweep) -> str:
    over = spread_over(*(len(trial.results) for trial in found))
    where = validation_note(found[0].results[0]).removeprefix(", ") or "test data"
    by = f"{score_info(sweep.score).title} under {STATISTICS[sweep.statistics]}, {where}"
    return f"sorted by {by}; percent; {over}; * best of its method"


def best_lines(found: Sequence[Trial], sweep: Sweep) -> list[str]:
    """Return for each method its best values, their score, and the command for the test data."""
    lines = []
    for trial in best_of_each(found):
        score = f"{score_info(sweep.score).title} {short_spread(trial.score)}"
        named = trial.named(sweep) or "as given"
        lines.append(f"best {trial.method}: {named} ({score}, {STATISTICS[sweep.statistics]})")
        if trial.results[0].validation:
            lines.append(f"  on the test data: {trial.test_command()}")
    return lines


def best_data(found: Sequence[Trial], sweep: Sweep) -> list[dict[str, Any]]:
    """Return the best trial of each method as JSON data."""
    return [
        {
            "method": trial.method,
            "values": dict(zip(shown_options(sweep), trial.values, strict=True)),
            "score": sweep.score,
            "statistics": sweep.statistics,
            "mean": trial.score and trial.score.mean,
            "half": trial.score and trial.score.half,
            "seeds": [result.seed for result in trial.results],
            "validation": trial.results[0].validation,
            "test_command": trial.test_command(),
        }
        for trial in best_of_each(found)
    ]
