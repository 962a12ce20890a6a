"""The names of methods, scores and statistics in a report, and what each score means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dualcba.errors import unknown
from dualcba.methods import METHODS, WRAPPERS
from dualcba.options import CBA

MISSING = "–"
KINDS = {kind: kind and "-" + kind.title().replace("Cba", "CBA") for kind in ("", *CBA)}
"""The suffix of a method's title, by the kind of its adaptor."""

STATISTICS = {"bn": "BN", "ibn": "IBN"}
"""The ways to evaluate, by whose statistics the normalisation layers use."""


def split_method(name: str) -> tuple[str, str]:
    """Split a method's name into base method and adaptor; the method need not be known here.

    >>> split_method("er-dual-cba"), split_method("er-cba"), split_method("mine")
    (('er', 'dual-cba'), ('er', 'cba'), ('mine', ''))
    """
    for kind in sorted(CBA, key=len, reverse=True):
        if name.endswith(f"-{kind}"):
            return name.removesuffix(f"-{kind}"), kind
    return name, ""


def method_title(name: str) -> str:
    """Return a method's name as the paper writes it.

    >>> method_title("derpp"), method_title("derpp-dual-cba"), method_title("mine-cba")
    ('DER++', 'DER-Dual-CBA', 'mine-CBA')
    >>> method_title("er-ace+mkd"), method_title("er+mkd-cba")
    ('ER-ACE + MKD', 'ER + MKD-CBA')
    """
    base, kind = split_method(name)
    first, plus, wrapper = base.partition("+")
    title = (first in METHODS and METHODS[first].title) or first
    if plus:
        title += " + " + ((wrapper in WRAPPERS and WRAPPERS[wrapper].title) or wrapper)
    return (title.rstrip("+") if kind else title) + KINDS[kind]


def count(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def seeds(*counts: int) -> str:
    """Return the numbers of seeds behind values that are shown together.

    >>> seeds(1), seeds(3), seeds(3, 1, 3)
    ('1 seed', '3 seeds', '1/3 seeds')
    """
    numbers = sorted(set(counts))
    return f"{'/'.join(map(str, numbers))} seed{'s' * (numbers != [1])}"


def spread_over(*counts: int) -> str:
    """Say what a mean with its interval is over; a single seed has no interval.

    >>> spread_over(1), spread_over(3, 3)
    ('1 seed, so no interval', 'mean ± 95 % interval over 3 seeds')
    """
    text = seeds(*counts)
    return f"{text}, so no interval" if set(counts) == {1} else f"mean ± 95 % interval over {text}"


def averaged(count: int) -> str:
    """Say how many seeds a curve without a band is the mean of.

    >>> averaged(1), averaged(3)
    ('one seed', 'mean over 3 seeds')
    """
    return "one seed" if count == 1 else f"mean over {seeds(count)}"


@dataclass(frozen=True)
class ScoreInfo:
    """The title of a score, whether higher is better, and its definition."""

    title: str
    up: bool
    meaning: str
    fixed: bool = False
    """Whether it is the same under BN and IBN, as a cost of training is."""

    digits: int = 1
    """Decimal places in tables."""

    @property
    def arrowed(self) -> str:
        """The title with an arrow that points to better values."""
        return f"{self.title} {'↑' if self.up else '↓'}"


SCORES = {
    "acc": ScoreInfo("ACC", True, "mean accuracy over all tasks at the end of the stream"),
    "fm": ScoreInfo(
        "FM",
        False,
        "forgetting: mean over all but the last task of the best accuracy at a task's end minus "
        "the final accuracy",
    ),
    "relative_fm": ScoreInfo(
        "relative FM",
        False,
        "mean over all but the last task of the forgetting of FM, in percent of the task's best "
        "accuracy",
    ),
    "fm_paper": ScoreInfo(
        "FM as written",
        False,
        "forgetting by the paper's formula: mean over all tasks, best accuracy over the whole run",
    ),
    "acc_auc": ScoreInfo(
        "AUC", True, "any-time accuracy: mean over the whole stream of the accuracy on tasks so far"
    ),
    "acc_auc_last": ScoreInfo("AUC, last task", True, "the same over the points of the last task"),
    "min_acc": ScoreInfo(
        "min-ACC",
        True,
        "stability gap: mean over old tasks of the lowest any-time accuracy after the task was "
        "learnt",
    ),
    "wc_acc": ScoreInfo(
        "WC-ACC",
        True,
        "worst case: the last task's accuracy with weight 1/T, min-ACC with the remaining weight",
    ),
    "bwt": ScoreInfo(
        "BWT", True, "backward transfer: mean change of a task's accuracy from learnt to the end"
    ),
    "fwt": ScoreInfo(
        "FWT",
        True,
        "forward transfer: mean accuracy on a task just before it is learnt, minus that of the "
        "untrained network",
    ),
    "balanced_acc": ScoreInfo(
        "balanced ACC", True, "mean over classes of the recall at the end of the stream"
    ),
    "learning_acc": ScoreInfo(
        "ACC after learning", True, "mean over all tasks of the accuracy at the task's own end"
    ),
    "newest": ScoreInfo(
        "newest task",
        True,
        "accuracy on the newest task at its own end, mean over tasks from the second on",
    ),
    "newest_last": ScoreInfo("last task", True, "accuracy on the last task at the end"),
    "newest_recall": ScoreInfo(
        "lowest recall, last task",
        True,
        "recall at the end of the class of the last task that is recognised worst",
    ),
    "prequential": ScoreInfo(
        "prequential",
        True,
        "accuracy on arriving batches before they are trained on; recorded by --record prequential",
    ),
    "task_aware_acc": ScoreInfo(
        "ACC, task known",
        True,
        "ACC among the classes of each sample's own task; recorded by --record task-aware",
    ),
    "ncm_acc": ScoreInfo(
        "ACC, class mean",
        True,
        "ACC by the nearest class mean of the memory's features in the place of the last layer; "
        "recorded by --record neighbours",
    ),
    "nn_acc": ScoreInfo(
        "ACC, nearest",
        True,
        "ACC by the nearest sample of the memory, by its features; recorded by --record neighbours",
    ),
    "lda_acc": ScoreInfo(
        "ACC, discriminant",
        True,
        "ACC by a linear discriminant of the memory's features; recorded by --record neighbours",
    ),
    "random_acc": ScoreInfo(
        "ACC, random features",
        True,
        "ACC of a linear discriminant on random features of the pixels, without network and "
        "memory; recorded by --record random-features",
        True,
    ),
    "relative_cost": ScoreInfo(
        "relative cost",
        False,
        "real-time evaluation: cost of a step relative to ER, so the method trains on one of so "
        "many batches",
        True,
        2,
    ),
    "relative_time": ScoreInfo(
        "time, ER = 1",
        False,
        "seconds of training relative to ER with the same seed, both in this table and on the same "
        "device; comparable only if runs were made one at a time",
        True,
        2,
    ),
    "parameters": ScoreInfo(
        "parameters, M", False, "millions of parameters, including those of the adaptor", True, 3
    ),
    "gpu_memory": ScoreInfo(
        "GPU memory, MB", False, "peak allocation, minus what was allocated before the run", True, 0
    ),
    "seconds_per_task": ScoreInfo(
        "s per task", False, "seconds of training per task on the host's clock", True, 2
    ),
}


def score_info(name: str) -> ScoreInfo:
    """Return the description of a score; `task3` is the accuracy of the third task at the end.

    >>> score_info("fm").arrowed, score_info("task3").title
    ('FM ↓', 'task 3')
    """
    if name in SCORES:
        return SCORES[name]
    number = name.removeprefix("task")
    if number.isdigit():
        return ScoreInfo(f"task {number}", True, f"accuracy of task {number} at the end")
    return ScoreInfo(name.replace("_", " "), True, name)


def check_scores(asked: Iterable[str]) -> None:
    """Raise unless these are names of scores.

    >>> check_scores(["acc", "task3", "balanced"])
    Traceback (most recent call last):
    ...
    ValueError: unknown score 'balanced', did you mean 'balanced_acc'? (known: acc, fm, ...)
    """
    for name in asked:
        if name not in SCORES and not re.fullmatch("task[0-9]+", name):
            raise ValueError(unknown("score", name, SCORES))


def slug(title: str) -> str:
    """Return a title as the name of a file or of an anchor in a page.

    >>> slug("Any-time, M = 100"), slug("Größe")
    ('any-time-m-100', 'größe')
    """
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return "-".join(words) or "part"
